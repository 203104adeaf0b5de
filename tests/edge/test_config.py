from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.core.errors import ConfigError
from specdec.edge.config import describe, load_config, read_config, redact


@dataclass(frozen=True, slots=True)
class Config:
    addresses: tuple[str, ...] = field(metadata={"help": "where the drafters are"})
    num_draft_tokens: int | None = field(default=4, metadata={"help": "0: off", "ge": 0, "le": 255})
    token_budget: int = field(default=512, metadata={"ge": 1})
    temperature: float = field(default=1.0, metadata={"ge": 0.0})
    dtype: str = field(default="float32", metadata={"choices": ("float32", "bfloat16")})
    store: str = field(default="memory://", metadata={"help": "URL of the store"})
    api_key: str | None = field(default=None, metadata={"secret": True})
    warm_up: bool = field(default=True)

    def validate(self) -> None:
        if self.num_draft_tokens is not None and self.token_budget < self.num_draft_tokens + 1:
            needed = f"must be at least num_draft_tokens + 1 = {self.num_draft_tokens + 1}"
            raise ConfigError("token_budget", self.token_budget, needed)


@dataclass(frozen=True, slots=True)
class Pin:
    pin: int = field(default=0, metadata={"secret": True})


def read(*argv: str, **env: str) -> Config:
    return read_config(Config, list(argv), {"ADDRESSES": "a:1", **env}, "prog")


def test_flag_wins_over_environment_wins_over_default() -> None:
    assert read().token_budget == 512
    assert read(TOKEN_BUDGET="600").token_budget == 600
    assert read("--token-budget", "700", TOKEN_BUDGET="600").token_budget == 700


def test_every_type_is_read_from_both_sources() -> None:
    text = {
        "addresses": "a:1,b:2",
        "num_draft_tokens": "none",
        "token_budget": "+64",
        "temperature": "1e-1",
        "dtype": "bfloat16",
        "store": "redis://cache:6379/0",
        "api_key": "k",
        "warm_up": "false",
    }
    expected = Config(("a:1", "b:2"), None, 64, 0.1, "bfloat16", "redis://cache:6379/0", "k", False)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in text.items()]
    assert read_config(Config, flags, {}, "prog") == expected
    assert read_config(Config, [], {name.upper(): value for name, value in text.items()}, "prog") == expected


def test_a_bare_switch_is_true() -> None:
    assert read("--warm-up", WARM_UP="false").warm_up is True


@pytest.mark.scenario("B122")
@pytest.mark.parametrize(
    ("field_name", "value", "allowed"),
    [
        ("num_draft_tokens", "-1", "from 0 to 255"),
        ("num_draft_tokens", "1000", "from 0 to 255"),
        ("num_draft_tokens", "'4'", "an integer"),
        ("num_draft_tokens", "None", "an integer"),
        ("token_budget", "4", "num_draft_tokens + 1 = 5"),
        ("token_budget", "0", "at least 1"),
        ("dtype", "float16", "one of float32, bfloat16"),
        ("addresses", "a:1,,b:2", "comma-separated list"),
    ],
)
def test_a_setting_that_cannot_work_is_named_with_its_value_and_range(
    field_name: str, value: str, allowed: str
) -> None:
    """Refused before anything is served, from flag and environment alike."""
    flag = f"--{field_name.replace('_', '-')}={value}"
    for argv, env in (([flag], {}), ([], {field_name.upper(): value})):
        with pytest.raises(ConfigError) as refused:
            read(*argv, **env)
        assert refused.value.field == field_name
        assert value in str(refused.value)
        assert allowed in str(refused.value)


@pytest.mark.scenario("B122")
def test_zero_draft_tokens_means_off_and_a_missing_address_is_refused() -> None:
    """k = 0 is a lawful setting; no draft address is none."""
    assert read(NUM_DRAFT_TOKENS="0").num_draft_tokens == 0
    with pytest.raises(ConfigError, match="ADDRESSES"):
        read_config(Config, [], {}, "prog")


@pytest.mark.scenario("B123")
@pytest.mark.parametrize("value", ["1.9", "true", " 3 ", "", "3\n", "1_0", "0x10", "٣", "1e2", "--3"])
def test_an_integer_is_never_guessed_from_something_else(value: str) -> None:
    """No cutting, no truth values, no spaces."""
    for argv, env in (([f"--token-budget={value}"], {}), ([], {"TOKEN_BUDGET": value})):
        with pytest.raises(ConfigError, match="an integer, at least 1"):
            read(*argv, **env)


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1,5", "", " 1", "1_0"])
def test_a_number_is_finite_and_in_range(value: str) -> None:
    with pytest.raises(ConfigError, match="a number, at least"):
        read(TEMPERATURE=value)


@pytest.mark.parametrize("value", ["1", "True", "yes", "", "off"])
def test_a_switch_is_true_or_false(value: str) -> None:
    with pytest.raises(ConfigError, match="true or false"):
        read(WARM_UP=value)


@pytest.mark.scenario("B124")
@pytest.mark.parametrize("argv", [["--tokn-budget", "3"], ["--token", "600"], ["stray"], ["--token-budget"], ["-k"]])
def test_unknown_abbreviated_and_incomplete_flags_are_refused(argv: list[str]) -> None:
    """An option that would not arrive is never taken in silence."""
    with pytest.raises(ConfigError):
        read(*argv)


@pytest.mark.scenario("B124")
@given(
    addresses=st.lists(st.from_regex(r"[a-z]{1,8}:[0-9]{1,5}", fullmatch=True), max_size=3),
    num_draft_tokens=st.none() | st.integers(0, 63),
    token_budget=st.integers(64, 10**6),
    temperature=st.floats(0, 100),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    warm_up=st.booleans(),
)
def test_what_describe_shows_is_what_would_be_read_again(**values: object) -> None:
    """Effective equals given, for every option."""
    values["addresses"] = tuple(values["addresses"])  # type: ignore[arg-type]
    config = Config(**values)  # type: ignore[arg-type]
    shown = describe(config)
    assert shown.pop("api_key") == "***"
    assert read_config(Config, [], {name.upper(): text for name, text in shown.items()}, "prog") == config


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hunter2@cache:6379/0",
        "redis://:hunter2@cache",
        "rediss://u:hunter2/with@odd:chars@cache",
        "redis://cache?password=hunter2&db=1",
        "redis://cache?db=1&api_key=hunter2",
    ],
)
def test_secrets_show_nowhere(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = read(STORE=url, API_KEY="hunter2", ADDRESSES=f"a:1,{url}")
    assert "hunter2" not in str(describe(config))
    assert "cache" in redact(url)
    with pytest.raises(ConfigError) as refused:
        read("--dtype", url)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        read_config(Pin, ["--pin", "hunter2"], {}, "prog")
    assert "pin" in str(refused.value)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(SystemExit):
        load_config(Config, ["--help"], {}, "prog")
    assert "api-key" in capsys.readouterr().out


def test_a_refused_configuration_is_one_sentence_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        load_config(Config, ["--token-budget", "1.9"], {"ADDRESSES": "a:1"}, "verifier")
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "verifier: token_budget = '1.9': must be an integer, at least 1\n"


def test_help_names_flag_variable_range_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        load_config(Config, ["--help"], {}, "verifier")
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--num-draft-tokens VALUE 0: off (an integer from 0 to 255, or none; NUM_DRAFT_TOKENS; default 4)" in text
