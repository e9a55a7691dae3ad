import io
from dataclasses import replace

from objectives.objective import Objective
from optimizer.reporting.front_table import NO_FRONT, front_table, front_text, plain, print_front, settings_table
from optimizer.reporting.member import Front, FrontMember, FrontMeta
from search_spaces.config import Config

META = FrontMeta(
    study="s",
    model="org/m",
    gpu="A100-80",
    engine="simulator 0.1.0",
    is_simulated=True,
    objectives=(
        Objective("saturation_output_tokens_per_s_per_gpu", "maximize"),
        Objective("steady_ttft_p99_ms", "minimize"),
        Objective("steady_itl_p99_ms", "minimize"),
    ),
    workload_hash="0123456789abcdef",
    noise={"saturation_output_tokens_per_s_per_gpu": 0.03, "steady_ttft_p99_ms": 0.05, "steady_itl_p99_ms": 0.02},
    reference=0,
)
SAFETY = {
    "steady_preemptions_per_request": 0.0,
    "stress_preemptions_per_request": 0.034,
    "stress_min_free_memory_bytes": 3.5 * 1024**3,
}


def member(trial: int, *values: float, **fields: object) -> FrontMember:
    config = Config({"max_num_batched_tokens": 2048, "max_num_seqs": 64 + trial})
    return FrontMember(trial=trial, configs={"server": config}, values=values or None, **fields)  # type: ignore[arg-type]


CURRENT = member(0, 2400.0, 800.0, 40.0, label="current", metrics=SAFETY)


def verdicts(*members: FrontMember, meta: FrontMeta = META) -> dict[str, str]:
    return {row[0]: row[-1] for row in front_table(Front(meta, (CURRENT, *members))).rows}


def test_a_gain_that_costs_is_a_trade() -> None:  # case TOOL-16
    best = member(4, 2450.0, 1500.0, 39.0, is_on_front=True, metrics=SAFETY, picks=("throughput",))
    front = Front(META, (CURRENT, best))
    text = front_text(front)
    row = front_table(front).rows[1]
    assert row[:5] == ("4", "2,450 (≈ +2.1 %)", "1,500 (+87.5 %)", "39 (-2.5 %)", "0, 0.034")
    assert row[-1] == "a trade"
    assert "improvement" not in text
    assert front_table(front).header[-1] == "against trial 0"
    assert "compared with your current configuration (trial 0)" in text
    assert "(saturation) 3.0 %" in text  # the band is shown
    assert "SIMULATED" in text


def test_the_word_fits_the_changes() -> None:
    said = verdicts(
        member(1, 2600.0, 790.0, 40.0, is_on_front=True),
        member(2, 2410.0, 790.0, 40.2, is_on_front=True),
        member(3, 2410.0, 1000.0, 40.0, is_on_front=True),
    )
    assert said == {"0": "itself, beaten", "1": "an improvement", "2": "a tie", "3": "worse"}


def test_without_a_reference_nothing_is_better() -> None:
    lost = replace(CURRENT, values=None, cause="does not fit", violations={"boot": 1.0})
    front = Front(META, (lost, member(1, 2600.0, 790.0, 40.0, is_on_front=True)))
    assert [row[-1] for row in front_table(front).rows] == ["no reference"]
    assert "your current configuration (trial 0): no figures to compare with" in front_text(front)


def test_no_front_says_what_blocks_and_by_how_much() -> None:  # case OPT-01
    limit = "stress_preemptions_per_request <= 0.1"
    close = member(3, 1.0, 2.0, 3.0, violations={limit: 0.5}, metrics={"stress_preemptions_per_request": 0.15})
    boot = member(4, violations={limit: 1.0, "boot": 0.7}, cause="weights do not fit")
    text = front_text(Front(META, (close, boot)))
    assert NO_FRONT in text
    first = next(line for line in text.splitlines() if line.startswith("3 "))
    assert (
        first.split("  ")[0] == "3"
        and "preemptions per request (stress) at most 0.1" in first
        and "50.0 %" in first
        and "0.15" in first
    )
    assert "weights do not fit" in text
    assert NO_FRONT in front_text(Front(META, ()))  # nothing at all


def test_settings_show_what_differs() -> None:
    front = Front(META, (CURRENT, member(5, 2600.0, 700.0, 39.0, is_on_front=True, picks=("knee",))))
    table = settings_table(front, front.members)
    assert table.header == ("setting", "trial 0 (current)", "trial 5 (knee)")
    assert table.rows == (("max_num_seqs", "64", "69"),)


def test_plain_columns_line_up() -> None:
    front = Front(META, (CURRENT, member(5, 2600.0, 700.0, 39.0, is_on_front=True)))
    lines = plain(front_table(front)).splitlines()
    rule = next(line for line in lines if line.startswith("---"))
    assert all(line[i] == " " for line in lines for i, c in enumerate(rule) if c == " " and i < len(line))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_boxes_and_a_pipe_gets_none() -> None:
    front = Front(META, (CURRENT, member(5, 2600.0, 700.0, 39.0, is_on_front=True, picks=("knee",))))
    terminal, pipe = Terminal(), io.StringIO()
    print_front(front, terminal)
    print_front(front, pipe)
    assert "─" in terminal.getvalue() and "SIMULATED" in terminal.getvalue()
    assert "\x1b" not in pipe.getvalue() and pipe.getvalue() == front_text(front)


def test_baselines_that_are_beaten_are_shown_by_name() -> None:
    default = member(1, 2500.0, 900.0, 45.0, label="vLLM defaults")
    front = Front(META, (default, CURRENT, member(4, 2600.0, 700.0, 39.0, is_on_front=True)))
    rows = front_table(front).rows
    assert [row[0] for row in rows] == ["0", "1", "4"]
    assert (rows[0][-1], rows[1][-1]) == ("itself, beaten", "vLLM defaults: a trade")


def test_a_pick_that_is_not_the_best_figure_is_marked() -> None:
    best = member(3, 2460.0, 900.0, 39.0, is_on_front=True)
    tied = member(4, 2450.0, 700.0, 39.0, is_on_front=True, picks=("throughput", "ttft"))
    front = Front(META, (CURRENT, best, tied))
    assert "≈ most throughput, lowest TTFT" in front_table(front).rows[-1]


def test_confirmed_is_yes_no_or_not_measured_again() -> None:
    members = (
        member(1, 2600.0, 700.0, 39.0, is_on_front=True, is_confirmed=True, note="held"),
        member(2, 2700.0, 800.0, 39.0, is_on_front=True, note="gone"),
        member(3, 2800.0, 900.0, 39.0, is_on_front=True),
    )
    front = Front(META, members)
    assert {row[0]: row[6] for row in front_table(front).rows} == {"1": "yes", "2": "no", "3": "-"}
    text = front_text(front)
    assert "confirmed no: did not hold when measured again" in text and "confirmed -: not measured again" in text


def test_a_gain_that_was_not_seen_again_is_not_called_confirmed() -> None:
    again = {
        "saturation_output_tokens_per_s_per_gpu": "better",
        "steady_ttft_p99_ms": "tie",
        "steady_itl_p99_ms": "tie",
    }
    held = member(4, 2700.0, 600.0, 40.0, is_on_front=True, is_confirmed=True, picks=("ttft", "knee"), note="held")
    front = Front(META, (CURRENT, replace(held, again=again)))
    row = front_table(front).rows[-1]
    assert row[6:8] == ("in part", "lowest TTFT (gain not seen again), knee")
    text = front_text(front)
    assert text.splitlines()[3].endswith("; confirmed, but the gain in P99 TTFT (steady) was not seen again")
    assert "trial 4: the gain in P99 TTFT (steady) was not seen again" in text
    whole = Front(META, (CURRENT, replace(held, again=dict.fromkeys(again, "better"))))
    assert front_table(whole).rows[-1][6:8] == ("yes", "lowest TTFT, knee") and "seen again" not in front_text(whole)


def test_what_costs_nothing_has_a_name() -> None:
    knee = member(4, 2700.0, 1100.0, 30.0, is_on_front=True, is_confirmed=True, picks=("knee",), note="held")
    free = member(5, 2600.0, 790.0, 30.0, is_on_front=True, is_confirmed=True, note="held")
    less = member(6, 2550.0, 790.0, 39.0, is_on_front=True, is_confirmed=True, note="held")
    front = Front(META, (CURRENT, knee, free, less))
    assert front.unpaid == free and front.named == (knee, free)
    assert [row[7] for row in front_table(front).rows] == ["", "knee", "better without a price", ""]
    assert settings_table(front, front.named).header[-1] == "trial 5 (better without a price)"
    dearer = replace(free, again={"steady_ttft_p99_ms": "worse"})
    assert Front(META, (CURRENT, knee, dearer, less)).unpaid == less  # a price that shows when measured again
    lost = replace(free, is_confirmed=False)
    assert Front(META, (CURRENT, knee, lost)).unpaid is None
    picked = replace(free, picks=("itl",))
    assert Front(META, (CURRENT, knee, picked, less)).unpaid is None  # it has a name already


def test_the_knee_is_said_in_one_line_first() -> None:
    knee = member(4, 2700.0, 790.0, 30.0, is_on_front=True, is_confirmed=True, picks=("knee",))
    text = front_text(Front(META, (CURRENT, knee))).splitlines()
    assert text[3].startswith("the knee, trial 4, against your current configuration (trial 0): output tokens/s/GPU")
    assert "+12.5 %" in text[3] and text[3].endswith("; confirmed")
    itself = replace(CURRENT, is_on_front=True, picks=("knee",))
    assert "the knee is your current configuration (trial 0) itself" in front_text(Front(META, (itself,)))


def test_bytes_are_shown_in_gib_too() -> None:
    big = replace(
        member(4, 2700.0, 790.0, 30.0, is_on_front=True),
        configs={"server": Config({"kv_cache_memory_bytes": 3 * 2**30})},
    )
    table = settings_table(Front(META, (CURRENT, big)), [big])
    assert ("kv_cache_memory_bytes", "-", "3221225472 (3.00 GiB)") in table.rows
