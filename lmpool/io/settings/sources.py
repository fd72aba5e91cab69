"""Where settings come from: defaults < TOML file < environment < flags (or keyword arguments of a program).

Every value given is checked, also one that a stronger source replaces, and what is unknown is refused.
"""

import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import attrs

from lmpool.io.settings.knob import Knob, NotAllowedError
from lmpool.io.settings.tree import Settings, contradiction, knobs, settings_of

CONFIG_VARIABLE = "LMPOOL_CONFIG"


class SettingsError(Exception):
    """Settings that cannot be used: the knob, its value, where it was given, and what is allowed."""


@attrs.frozen
class _Given:
    knob: Knob
    value: Any
    """Read by the knob's kind."""
    shown: str
    source: str

    def told(self) -> str:
        return f"{self.knob.name} = {self.shown} ({self.source})"


def read_settings(
    config: Path | None, environment: Mapping[str, str], flags: Mapping[str, str | list[str]]
) -> Settings:
    """For the command line. `flags` are texts by knob name; `config` is the file of --config, which comes before the
    one that the environment names. Raises SettingsError."""
    named = environment.get(CONFIG_VARIABLE)
    file = config if config is not None else Path(named).expanduser() if named else None
    return _merged([*([] if file is None else _from_file(file)), *_from_environment(environment), *_from_flags(flags)])


def program_settings(values: Mapping[str, object]) -> Settings:
    """For an embedding program: typed values by knob name, and nothing from the environment. Raises SettingsError."""
    known = {knob.name: knob for knob in knobs()}
    given = []
    for name, value in values.items():
        if name not in known:
            raise SettingsError(f"there is no setting {name!r}{_nearest(name, known)}")
        given.append(_read_value(known[name], value, "keyword argument"))
    return _merged(given)


def _merged(given: Iterable[_Given]) -> Settings:
    """Later ones win."""
    winners = {each.knob.name: each for each in given}
    settings = settings_of({name: each.value for name, each in winners.items()})
    found = contradiction(settings)
    if found is None:
        return settings
    told = [winners[name].told() if name in winners else _default_told(settings, name) for name in found.knobs]
    raise SettingsError(f"{' and '.join(told)} contradict each other: {found.what}")


def _default_told(settings: Settings, name: str) -> str:
    knob = next(knob for knob in knobs() if knob.name == name)
    return f"{name} = {getattr(getattr(settings, knob.section), name)} (default)"


def _from_file(path: Path) -> list[_Given]:
    try:
        tree = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} is not TOML: {error}") from error
    known = {(knob.section, knob.name): knob for knob in knobs()}
    sections = dict.fromkeys(section for section, _ in known)
    given = []
    for section, table in tree.items():
        if section not in sections:
            raise SettingsError(f"{path}: unknown section [{section}]{_nearest(section, sections)}")
        if not isinstance(table, dict):
            raise SettingsError(f"{path}: {section} must be a section: [{section}]")
        for name, value in table.items():
            if (section, name) not in known:
                names = [knob for where, knob in known if where == section]
                raise SettingsError(f"{path}: [{section}] has no setting {name!r}{_nearest(name, names)}")
            given.append(_read_value(known[section, name], value, f"[{section}] in {path}"))
    return given


def _from_environment(environment: Mapping[str, str]) -> list[_Given]:
    known = {knob.variable: knob for knob in knobs()}
    given = []
    for variable in sorted(name for name in environment if name.startswith("LMPOOL_") and name != CONFIG_VARIABLE):
        if variable not in known:
            raise SettingsError(f"the environment has {variable}, which is no setting{_nearest(variable, known)}")
        given.append(_read_text(known[variable], environment[variable], f"environment {variable}"))
    return given


def _from_flags(flags: Mapping[str, str | list[str]]) -> list[_Given]:
    given = []
    for knob in knobs():
        text = flags.get(knob.name)
        source = "argument MODEL" if knob.name == "model" else f"flag {knob.flag}"
        if isinstance(text, str):
            given.append(_read_text(knob, text, source))
        elif text is not None:
            given.append(_read_value(knob, text, source))
    return given


def _read_text(knob: Knob, text: str, source: str) -> _Given:
    try:
        return _Given(knob, knob.kind.from_text(text), text, source)
    except NotAllowedError:
        raise _refusal(knob, repr(text), source) from None


def _read_value(knob: Knob, value: object, source: str) -> _Given:
    try:
        return _Given(knob, knob.kind.from_value(value), str(value), source)
    except NotAllowedError:
        raise _refusal(knob, repr(value), source) from None


def _refusal(knob: Knob, shown: str, source: str) -> SettingsError:
    return SettingsError(f"{knob.name} = {shown} ({source}): allowed is {knob.kind.allowed}")


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
