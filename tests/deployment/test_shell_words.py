import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.deployment.shell_words import split_commands
from optimizer.errors import UserError


def words(text: str) -> list[list[str]]:
    return [[w.text for w in command] for command in split_commands(text, "f")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a 'b c' \"d e\" f\\ g", [["a", "b c", "d e", "f g"]]),
        ("a \\\n  b # comment\nc#d", [["a", "b"], ["c#d"]]),
        ("a > log 2>&1 &", [["a"]]),
        ("a 2>/dev/null b | tee x; c && d", [["a", "b"], ["tee", "x"], ["c"], ["d"]]),
        ('a \'{"x": 1}\' "\\$y \\n"', [["a", '{"x": 1}', "$y \\n"]]),
        ("a ''", [["a", ""]]),
    ],
)
def test_splits_as_a_shell_does(text: str, expected: list[list[str]]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize("part", ["$A", "${A:-x y}", "$(cat f; ls)", "`date`", '"${A}"', "pre$A"])
def test_what_a_shell_fills_in_is_marked_and_kept(part: str) -> None:
    (command,) = split_commands(f"x {part} z", "f")
    assert [w.is_filled_in for w in command] == [False, True, False]
    assert command[1].text == part.strip('"')


def test_single_quotes_keep_a_dollar() -> None:
    (command,) = split_commands("x '$A' \\$B", "f")
    assert [(w.text, w.is_filled_in) for w in command] == [("x", False), ("$A", False), ("$B", False)]


@pytest.mark.parametrize(("text", "line"), [("a\nb 'c", 2), ('a "b', 1), ("a\n\n$(b", 3), ("a `b", 1), ("a \\ \nb", 1)])
def test_what_is_never_closed_names_its_line(text: str, line: int) -> None:
    with pytest.raises(UserError, match=f"f line {line}: "):
        words(text)


@given(st.lists(st.text(min_size=0, max_size=12), min_size=1, max_size=6))
def test_quoted_words_come_back(parts: list[str]) -> None:
    assert words(" ".join(map(shlex.quote, parts))) == [parts]
