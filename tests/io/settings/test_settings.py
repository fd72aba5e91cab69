from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.io.settings.knob import Count, NotAllowedError, PowerOfTwo, Seconds, Size, Texts, size_text
from lmpool.io.settings.sources import SettingsError, program_settings, read_settings
from lmpool.io.settings.tree import Settings, knobs


def write(folder: Path, content: str) -> Path:
    path = folder / "lmpool.toml"
    path.write_text(content)
    return path


def test_defaults_alone_are_a_valid_tree() -> None:
    assert read_settings(None, {}, {}) == Settings() == program_settings({})


def test_flags_win_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    config = write(tmp_path, "[pool]\nreplicas = 3\nkv_blocks = 100\nblock_size = 32\n[http]\nport = 1234\n")
    environment = {"LMPOOL_REPLICAS": "5", "LMPOOL_KV_BLOCKS": "200", "HOME": "/"}
    pool = read_settings(config, environment, {"replicas": "7"}).pool
    assert (pool.replicas, pool.kv_blocks, pool.block_size) == (7, 200, 32)


def test_the_environment_names_the_file_and_a_flag_names_another(tmp_path: Path) -> None:
    config = write(tmp_path, "[http]\nport = 1234\n")
    assert read_settings(None, {"LMPOOL_CONFIG": str(config)}, {}).http.port == 1234
    assert read_settings(config, {"LMPOOL_CONFIG": "/nowhere"}, {}).http.port == 1234


def test_several_names_come_as_a_list_in_toml_by_commas_in_the_environment_and_as_words_in_flags(
    tmp_path: Path,
) -> None:
    config = write(tmp_path, '[model]\nserved_model_name = ["a", "b"]\n')
    assert read_settings(config, {}, {}).model.served_model_name == ("a", "b")
    assert read_settings(None, {"LMPOOL_SERVED_MODEL_NAME": "a, b"}, {}).model.served_model_name == ("a", "b")
    assert read_settings(None, {}, {"served_model_name": ["a", "b"]}).model.served_model_name == ("a", "b")


def test_sizes_have_units() -> None:
    assert read_settings(None, {}, {"kv_memory": "4GiB"}).pool.kv_memory == 4 << 30
    assert read_settings(None, {}, {"kv_memory": "1.5MiB"}).pool.kv_memory == 3 << 19
    assert program_settings({"kv_memory": 1 << 21}).pool.kv_memory == 1 << 21
    assert size_text(3 << 29) == "1.50GiB"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"replicas": "0"}, "replicas = '0' (flag --replicas): allowed is a whole number from 1 to 64"),
        ({"replicas": "two"}, "replicas = 'two' (flag --replicas)"),
        ({"replicas": "1.0"}, "replicas = '1.0'"),
        ({"block_size": "24"}, "block_size = '24' (flag --block-size): allowed is a power of two from 8 to 512"),
        ({"kv_memory": "4 gigs"}, "allowed is a size such as 512MiB or 4GiB"),
        ({"drain_seconds": "-1"}, "allowed is seconds from 0 to 3600"),
        ({"drain_seconds": "nan"}, "allowed is seconds from 0 to 3600"),
        ({"policy": "best"}, "allowed is one of default, marginal-time"),
        ({"device": "tpu"}, "allowed is one of auto, cpu, cuda, cuda:N"),
        ({"served_model_name": ["a", "a"]}, "different ones"),
        ({"model": ""}, "model = '' (argument MODEL): allowed is a folder, a .gguf file or a hub id"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_its_source_and_what_is(
    flags: dict[str, str | list[str]], told: str
) -> None:
    with pytest.raises(SettingsError) as refusal:
        read_settings(None, {}, flags)
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('[pool]\nreplicas = "2"\n', "replicas = '2' ([pool] in "),
        ("[pool]\nreplicas = true\n", "replicas = True"),
        ("[pool]\nreplicas = 2.0\n", "replicas = 2.0"),
        ("[pool]\nreplica = 2\n", "[pool] has no setting 'replica'; did you mean replicas?"),
        ("[pools]\nreplicas = 2\n", "unknown section [pools]; did you mean pool?"),
        ("pool = 2\n", "pool must be a section: [pool]"),
        ("[pool\n", "is not TOML"),
    ],
)
def test_a_file_is_read_strictly(tmp_path: Path, content: str, told: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        read_settings(write(tmp_path, content), {}, {})
    assert told in str(refusal.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SettingsError, match=r"cannot read the settings file /nowhere: No such file"):
        read_settings(Path("/nowhere"), {}, {})


def test_unknown_variables_and_keyword_arguments_are_refused() -> None:
    with pytest.raises(SettingsError, match="LMPOOL_REPLICA, which is no setting; did you mean LMPOOL_REPLICAS"):
        read_settings(None, {"LMPOOL_REPLICA": "2"}, {})
    with pytest.raises(SettingsError, match="there is no setting 'replica'; did you mean replicas"):
        program_settings({"replica": 2})


def test_a_wrong_value_is_refused_even_where_a_stronger_source_replaces_it() -> None:
    with pytest.raises(SettingsError, match="environment LMPOOL_REPLICAS"):
        read_settings(None, {"LMPOOL_REPLICAS": "none"}, {"replicas": "2"})


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"kv_blocks": "100", "kv_memory": "1GiB"}, "kv_blocks = 100 (flag --kv-blocks) and kv_memory = 1GiB"),
        ({"kv_blocks": "100", "max_model_len": "1601"}, "needs 101 blocks of 16 tokens"),
        ({"sequences": "600"}, "sequences = 600 (flag --sequences) and step_tokens = 512 (default) contradict"),
        ({"max_model_len": "4096", "waiting_tokens": "4095"}, "could never wait"),
        ({"calibration": "made.json", "placement": "off"}, "nothing is priced by it"),
        ({"restart_pause_seconds": "20"}, "the first pause is longer than the longest"),
    ],
)
def test_b36_settings_that_contradict_each_other_are_refused_with_both(
    flags: dict[str, str | list[str]], told: str
) -> None:
    with pytest.raises(SettingsError) as refusal:
        read_settings(None, {}, flags)
    assert told in str(refusal.value)


def test_a_context_that_just_fits_the_blocks_is_allowed() -> None:
    assert read_settings(None, {}, {"kv_blocks": "100", "max_model_len": "1600"}).model.max_model_len == 1600


def test_every_knob_is_told_with_a_reason_and_its_default_is_allowed() -> None:
    names = [knob.name for knob in knobs()]
    assert len(set(names)) == len(names) <= 45
    for knob in knobs():
        assert knob.about, knob.name
        assert knob.reason, knob.name
        if knob.default is not None:
            assert knob.kind.from_value(knob.default) == knob.default, knob.name


KINDS = (Count(1, 9), PowerOfTwo(8, 64), Seconds(0, 9), Size(1), Texts(knobs()[0].kind))  # type: ignore[arg-type]


@given(st.sampled_from(KINDS), st.text() | st.from_regex(r"[0-9.]{1,25} ?[KMG]?i?B?", fullmatch=True))
def test_any_text_is_read_or_refused(kind: Count | PowerOfTwo | Seconds | Size | Texts, text: str) -> None:
    try:
        value = kind.from_text(text)
    except NotAllowedError:
        return
    assert kind.from_value(value) == value


@given(st.integers(1, 1 << 45))
def test_a_size_in_bytes_is_read_as_it_is(size: int) -> None:
    assert Size(1).from_text(str(size)) == size
