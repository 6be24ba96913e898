"""Settings: where each comes from, which source wins, and how a wrong one is named."""

from pathlib import Path

import pytest

from controlplane.config import load_settings
from controlplane.errors import BadConfig


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    """Each source is overruled by the next stronger one, setting by setting."""
    path = tmp_path / "c.toml"
    path.write_text(
        '[etcd]\nurl = "http://file:1"\n[fleet]\nname = "file"\n[log]\nlevel = "debug"\n'
    )
    environment = {"CHANGEOVER_FLEET": "env", "CHANGEOVER_ETCD": "http://env:2"}
    settings = load_settings({"etcd": "http://flag:3", "fleet": None}, environment, path)
    assert (settings.etcd, settings.fleet, settings.log_level) == ("http://flag:3", "env", "debug")
    assert settings.log_form == "text"


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    """`CHANGEOVER_CONFIG` stands for `--config`."""
    path = tmp_path / "c.toml"
    path.write_text('[fleet]\nname = "lab"\n[policy]\nlaunch_patience_s = 3.0\n')
    settings = load_settings({}, {"CHANGEOVER_CONFIG": str(path)})
    assert settings.fleet == "lab"
    assert settings.knobs == {"launch_patience_s": 3.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[fleet]\nname = "A b"\n', "fleet.name: 'A b'"),
        ('[fleet]\nnmae = "x"\n', "did you mean fleet.name?"),
        ("[etcd\n", "is not TOML"),
        ('[etcd]\nurl = "ftp://x"\n', "etcd.url: 'ftp://x'"),
        ("[controller]\nttl_s = 0.2\n", "from 1 to 3600"),
        ('[log]\nlevel = "warn"\n', "did you mean warning?"),
        ("[policy]\nlease_ttl_s = 1.0\n", "self_fence_s < policy.lease_ttl_s does not hold"),
        ("[policy]\nleese_ttl_s = 1.0\n", "did you mean lease_ttl_s?"),
        ("policy = 3\n", "must be a table"),
    ],
)
def test_a_wrong_setting_names_file_field_value_and_cure(
    tmp_path: Path, text: str, words: str
) -> None:
    """One line says what is wrong, where it stands, and what is allowed."""
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(BadConfig, match=r"c\.toml|--config") as caught:
        load_settings({}, {}, path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_environment_variable_is_named() -> None:
    """The source is the variable, not the setting."""
    with pytest.raises(BadConfig, match="environment variable CHANGEOVER_DEMO: 'maybe'"):
        load_settings({}, {"CHANGEOVER_DEMO": "maybe"})


def test_a_controller_without_a_name_gets_one_of_its_own() -> None:
    """Host and pid: two controllers of one machine do not share a name."""
    name = load_settings({}, {}).controller
    assert name.rpartition("-")[2].isdigit()


def test_tls_files_are_taken_together() -> None:
    """None of them means plain."""
    assert load_settings({}, {}).tls is None
    tls = load_settings({"ca": "ca.pem"}, {"CHANGEOVER_ETCD_CERT": "c.pem"}).tls
    assert tls is not None
    assert (tls.ca, tls.cert, tls.key) == ("ca.pem", "c.pem", "")
