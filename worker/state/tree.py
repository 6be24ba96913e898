"""State that is not a tensor: JSON, with tensors lifted out by name.

Rules of this file: a value is taken apart into a JSON document and a list of named tensors, and put
together again; nothing is pickled, and what cannot be taken apart exactly is refused by name. Known
are None, bool, int, float, str, bytes, list, tuple, dict, torch tensors and numpy arrays. JSON
objects with the key ``$`` stand for what JSON lacks; a dict of the user's that needs it is tagged.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Tree = Any
"""A JSON document made by `take_apart`."""


class StateRefused(TypeError):
    """Something that was registered cannot be carried exactly; the message names it."""


def take_apart(name: str, value: object, tensors: dict[str, Tensor]) -> Tree:
    """Turn `value` into JSON, adding its tensors to `tensors` under names that start with `name`.

    Raises StateRefused, naming the key, on anything that could only be pickled.
    """
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else {"$": "float", "is": repr(value)}
        case bytes() | bytearray():
            return {"$": "bytes", "is": bytes(value).hex()}
        case Tensor():
            return _lifted("tensor", name, value, tensors)
        case dict():
            return _dict_apart(name, value, tensors)
        case list():
            return [take_apart(f"{name}.{at}", item, tensors) for at, item in enumerate(value)]
        case tuple() if type(value) is tuple:
            items = [take_apart(f"{name}.{at}", item, tensors) for at, item in enumerate(value)]
            return {"$": "tuple", "is": items}
        case _:
            return _array_apart(name, value, tensors)


def put_together(tree: Tree, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `take_apart`; tensors are used as they are, not copied.

    Raises KeyError if a tensor is missing, ValueError on a tree that `take_apart` did not make.
    """
    if isinstance(tree, list):
        return [put_together(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "$" not in tree:
        return {key: put_together(item, tensors) for key, item in tree.items()}
    parts: dict[str, Callable[[Any], Any]] = {
        "float": float,
        "bytes": bytes.fromhex,
        "tensor": tensors.__getitem__,
        "array": lambda name: tensors[name].numpy(),
        "tuple": lambda items: tuple(put_together(item, tensors) for item in items),
        "dict": lambda items: {
            put_together(key, tensors): put_together(item, tensors) for key, item in items
        },
    }
    if tree["$"] not in parts:
        raise ValueError(f"state tree has an unknown part {tree['$']!r}")
    return parts[tree["$"]](tree["is"])


def _dict_apart(name: str, value: dict[Any, Any], tensors: dict[str, Tensor]) -> Tree:
    if all(isinstance(key, str) for key in value) and "$" not in value:
        return {key: take_apart(f"{name}.{key}", item, tensors) for key, item in value.items()}
    items = []
    for key, item in value.items():
        if not isinstance(key, str | int | tuple):
            raise StateRefused(f"{name}: key {key!r} is neither text nor number")
        tree = take_apart(f"{name}.{key}", item, tensors)
        items.append([take_apart(f"{name} key {key}", key, tensors), tree])
    return {"$": "dict", "is": items}


def _array_apart(name: str, value: object, tensors: dict[str, Tensor]) -> Tree:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        try:
            return _lifted("array", name, torch.from_numpy(value.copy()), tensors)
        except TypeError as error:
            raise StateRefused(f"{name}: {error}") from None
    raise StateRefused(
        f"{name}: a {type(value).__name__} cannot be carried; state must be numbers, text, bytes, "
        "tensors, and lists, tuples or dicts of them"
    )


def _lifted(kind: str, name: str, tensor: Tensor, tensors: dict[str, Tensor]) -> Tree:
    if name in tensors:
        raise StateRefused(f"{name}: two tensors have this name")
    tensors[name] = tensor
    return {"$": kind, "is": name}
