"""Knobs of the detector: unsafe sets are refused with the numbers."""

import pytest

from statemachine.detector_policy import DetectorPolicy
from statemachine.errors import BadPolicy


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"watch_ratio": 1.2}, "watch_ratio <= degraded_ratio does not hold: 1.2 > 1.08"),
        ({"clear_ratio": 1.06}, "clear_ratio <= watch_ratio does not hold: 1.06 > 1.05"),
        ({"windows_to_clear": 5}, "windows_to_degrade <= windows_to_clear does not hold: 8 > 5"),
        ({"windows_to_suspect": 0}, "windows_to_suspect is 0; at least 1"),
        ({"z_min": 2.0}, "z_min_backed <= z_min does not hold: 5.0 > 2.0"),
        ({"peers_min": 1}, "peers_min is 1; at least 2"),
        ({"indicators_min": 1}, "indicators_min is 1; at least 2"),
        ({"verdict_ttl_s": 0.0}, "verdict_ttl_s is 0.0; at least 1.0"),
        ({"clear_ratio": 0.9}, "clear_ratio is 0.9; at least 1.0"),
    ],
)
def test_unsafe_knobs_are_refused_with_the_numbers(knobs: dict[str, float], says: str) -> None:
    """A clearing easier than the accusing, or a verdict on one indicator, cannot be configured."""
    with pytest.raises(BadPolicy) as refusal:
        DetectorPolicy(**knobs)  # type: ignore[arg-type]

    assert says in str(refusal.value)
