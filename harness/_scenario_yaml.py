"""YAML as plain data that remembers its lines, and the tables written inside it.

The reader takes plain YAML only: mappings, lists, text, numbers, booleans and null. A key is the text that stands in
the file, so an arm may be called `off`; a value follows YAML 1.1, so that `off` means the same here as in the server
configurations it is copied to, except that dates, sexagesimal and octal numbers stay text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.errors import ScenarioError

Loc = tuple[str | int, ...]
"""Where a value stands: mapping keys and list positions from the top."""

_MAX_VALUES = 100_000
_MAX_DEPTH = 32
_MAX_INT = 2**63


class _Loader(yaml.SafeLoader):
    """Scalars only: our own walk builds the collections."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$", list("yYnNtTfFoO")),
    ("int", r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$", list("-+0123456789")),
    ("float", r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def dotted(loc: Loc) -> str:
    """`('workloads', 0, 'table')` as `workloads[0].table`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML file as data.

    Parameters:
        path: the file.
        data: the top-level mapping.
        lines: 1-based line of every value's key or list dash.
        blocks: 1-based line of the first text line of every literal (`|`) block.
    """

    path: Path
    data: dict[str, Any]
    lines: Mapping[Loc, int]
    blocks: Mapping[Loc, int]

    def line(self, loc: Loc) -> int | None:
        """Line of the nearest enclosing value that has one."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc)

    def error(self, loc: Loc, found: str, allowed: str, *, line: int | None = None, part: str = "") -> ScenarioError:
        """An error at `loc`, or at `part` of it (a table's row) on `line`."""
        where = f"{dotted(loc)} {part}" if part else dotted(loc)
        return ScenarioError(self.path, where, found, allowed, self.line(loc) if line is None else line)


def read_document(path: Path) -> Document:
    """Read a file whose top level is a mapping, or raise the one ScenarioError that says why not."""
    text = _read_text(path)
    try:
        node = _compose(text)
        if node is None:
            raise ScenarioError(path, "", "an empty file", "a YAML mapping")
        if not isinstance(node, yaml.MappingNode):
            kind = "a list" if isinstance(node, yaml.SequenceNode) else f"the text {_short(node.value)}"
            raise ScenarioError(path, "", kind, "a YAML mapping (`key: value` lines)", node.start_mark.line + 1)
        walk = _Walk(path)
        return Document(path, walk.build(node, ()), walk.lines, walk.blocks)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise ScenarioError(
            path, "", f"what is not YAML ({problem})", "a YAML file", mark.line + 1 if mark else None
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        raise ScenarioError(
            path, "", f"a control character (code {error.character})", "printable text", line
        ) from error
    except RecursionError as error:
        raise ScenarioError(path, "", "values nested too deeply to read", "a YAML mapping") from error


def _compose(text: str) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise ScenarioError(path, "", "a directory", "a YAML file")
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise ScenarioError(path, "", "no such file", "a YAML file") from error
    except OSError as error:
        raise ScenarioError(path, "", f"a file that cannot be read ({error.strerror})", "a readable file") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ScenarioError(path, "", f"the byte 0x{raw[error.start]:02x}", "text in UTF-8", line) from error


class _Walk:
    """One pass over the nodes: data, lines, and what plain YAML does not hold refused."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0
        self._scalars = yaml.constructor.SafeConstructor()
        self.lines: dict[Loc, int] = {}
        self.blocks: dict[Loc, int] = {}

    def build(self, node: yaml.Node, loc: Loc) -> Any:
        self._count += 1
        if self._count > _MAX_VALUES:
            raise self._error(node, loc, f"more than {_MAX_VALUES} values (an alias of aliases?)", "a shorter file")
        if len(loc) > _MAX_DEPTH:
            raise self._error(node, loc[:3], f"values nested more than {_MAX_DEPTH} deep", "fewer levels")
        if loc:
            self.lines.setdefault(loc, node.start_mark.line + 1)
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return self._mapping(node, loc)
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [self.build(item, (*loc, position)) for position, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and kind in ("str", "int", "float", "bool", "null"):
            if node.style == "|":
                self.blocks[loc] = node.start_mark.line + 2
            try:
                value = self._scalars.construct_object(node)
            except (ValueError, KeyError) as error:
                raise self._error(node, loc, f"{_short(node.value)} marked as {kind}", "a plain value") from error
            if isinstance(value, float) and not math.isfinite(value):
                raise self._error(node, loc, _short(node.value), "a finite number")
            if isinstance(value, int) and abs(value) > _MAX_INT:
                raise self._error(node, loc, _short(node.value), "a number of 64 bits")
            self._check_text(node, loc)
            return value
        raise self._error(node, loc, f"the tag {node.tag}", "plain YAML without tags")

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, loc, "a key that is a mapping or a list", "text keys")
            key = key_node.value
            self._check_text(key_node, loc)
            here = (*loc, key)
            if key_node.tag.endswith(":merge") or key == "<<":
                raise self._error(key_node, here, "a merge key", "keys written out")
            if key in data:
                first = self.lines[here]
                raise self._error(key_node, here, f"the key twice (first on line {first})", "each key once")
            self.lines[here] = key_node.start_mark.line + 1
            data[key] = self.build(value_node, here)
        return data

    def _check_text(self, node: yaml.ScalarNode, loc: Loc) -> None:
        # Escapes in double quotes can write what no file, argument or variable can hold.
        if "\0" in node.value:
            raise self._error(node, loc, f"{_short(node.value)}, text with a NUL character", "text without it")
        if any("\ud800" <= letter <= "\udfff" for letter in node.value):
            raise self._error(node, loc, f"{_short(node.value)}, text with half a surrogate pair", "whole characters")

    def _error(self, node: yaml.Node, loc: Loc, found: str, allowed: str) -> ScenarioError:
        return ScenarioError(self._path, dotted(loc), found, allowed, node.start_mark.line + 1)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: its line in the file and its cells by column name."""

    line: int
    cells: Mapping[str, str]


def read_table(document: Document, loc: Loc, required: Sequence[str], optional: Sequence[str]) -> tuple[Row, ...]:
    """The rows of the literal block at `loc`.

    The first line that is neither blank nor a comment names the columns, in any order.

    Raises:
        ScenarioError: not a literal block, a wrong header, a row of another width, or no row at all.
    """
    first = document.blocks.get(loc)
    if first is None:
        raise document.error(loc, "text on one line", "a literal block: `table: |` with the rows below it")
    text = _value(document.data, loc)
    lines = [(first + offset, line) for offset, line in enumerate(text.split("\n"))]
    filled = [(line, words) for line, raw in lines if (words := re.sub(r"(^|\s)#.*", "", raw).split())]
    if not filled:
        raise document.error(loc, "an empty table", f"a header ({' '.join(required)}) and rows")
    (header_line, header), *rows = filled
    _check_header(document, loc, header_line, header, required, optional)
    if not rows:
        raise document.error(loc, "a header without rows", "at least one row", line=header_line)
    for number, (line, cells) in enumerate(rows, start=1):
        if len(cells) != len(header):
            count = f"{len(cells)} {'column' if len(cells) == 1 else 'columns'}"
            allowed = f"{len(header)} columns: {' '.join(header)}"
            raise document.error(
                loc, f"{count} ({' '.join(cells)})", allowed, line=line, part=f"row {number} {cells[0]!r}"
            )
    return tuple(Row(line, dict(zip(header, cells, strict=True))) for line, cells in rows)


def _check_header(
    document: Document, loc: Loc, line: int, header: list[str], required: Sequence[str], optional: Sequence[str]
) -> None:
    allowed = " ".join(required) + (f" (and optionally: {' '.join(optional)})" if optional else "")
    for found, columns in (
        ("the unknown column", [name for name in header if name not in required and name not in optional]),
        ("twice the column", [name for name in header if header.count(name) > 1]),
        ("no column", [name for name in required if name not in header]),
    ):
        if columns:
            raise document.error(loc, f"{found} {columns[0]!r}", allowed, line=line, part="header")


def _value(data: Any, loc: Loc) -> str:
    for part in loc:
        data = data[part]
    return str(data)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
