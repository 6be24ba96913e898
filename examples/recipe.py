"""What the training scripts beside this file share: arguments, and the parts of a run.

The scripts differ in how ranks come together and how gradients meet. All else is here, so that a
difference between two runs is a difference between two scripts.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._dynamo  # the first optimizer would import it, a second late, in the middle of a start
from corpus import Corpus, CorpusError
from model import GPT, Shape
from torch.optim import AdamW


@dataclass
class Recipe:
    """A model, its optimizer and its data, the same on every rank."""

    model: GPT
    optimizer: AdamW
    corpus: Corpus


def arguments(description: str) -> argparse.ArgumentParser:
    """The arguments of every script here."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--steps", type=_count, default=300, help="optimizer steps")
    parser.add_argument("--data", type=Path, help="a file or folder; else the standard library")
    parser.add_argument("--batch", type=_count, default=8, help="sequences per rank and step")
    parser.add_argument("--context", type=_count, default=64, help="bytes per sequence")
    parser.add_argument("--layers", type=_count, default=4)
    parser.add_argument("--heads", type=_count, default=4)
    parser.add_argument("--width", type=_count, default=128, help="a multiple of --heads")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--threads", type=_count, default=1, help="of torch, per rank")
    parser.add_argument("--check", action="store_true", help="end once the arguments are sound")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line; a value that cannot work ends the script with exit code 2.

    With `--check` it ends here in any case.
    """
    args = parser.parse_args()
    if args.width % args.heads:
        parser.error(f"--width {args.width} is not a multiple of --heads {args.heads}")
    if not 0 <= args.dropout < 1:
        parser.error(f"--dropout {args.dropout} is not a probability below 1")
    if args.check:
        sys.exit(0)
    return args


def recipe(args: argparse.Namespace, seed: int) -> Recipe:
    """Build the parts from arguments and seed; data that cannot be used ends with exit code 2."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(seed)
    corpus = corpus_of(args, seed)
    model = GPT(
        Shape(
            context=args.context,
            layers=args.layers,
            heads=args.heads,
            width=args.width,
            dropout=args.dropout,
        )
    )
    return Recipe(model, AdamW(model.parameters(), lr=args.rate), corpus)


def corpus_of(args: argparse.Namespace, seed: int) -> Corpus:
    """The data that the arguments name; what cannot be used ends the script with exit code 2."""
    try:
        return Corpus.load(args.data, batch=args.batch, context=args.context, seed=seed)
    except CorpusError as error:
        print(f"{Path(sys.argv[0]).name}: --data {error}", file=sys.stderr)
        sys.exit(2)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value
