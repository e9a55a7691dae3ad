"""A study's verdicts out of its trials', and what other trials say of one that misses a limit."""

from __future__ import annotations

from optimizer.questions.answer import Answer
from optimizer.questions.diagnosis import Diagnosis
from optimizer.questions.interference import Spikes
from optimizer.questions.preemption import Checklist
from optimizer.questions.situation import Gauge
from optimizer.reporting.elsewhere import elsewhere_of
from optimizer.reporting.member import Front, FrontMember, FrontMeta
from optimizer.reporting.study_diagnosis import _tally
from search_spaces.config import Config
from search_spaces.hardware import GIB
from tests.questions.situations import QUIET, known


def saying(verdict: str) -> Diagnosis:
    answer = Answer(1, "title", verdict, f"it is {verdict}", "high", ("evidence",), "less of it")
    return Diagnosis("trial", "healthy", (), (answer,), Checklist(False, "none", ()), Spikes(False, "none"))


def test_verdicts_are_counted_by_trial() -> None:
    found = _tally(1, "title", [(n, saying("a" if n < 9 else "b")) for n in range(10)])
    assert (found.verdict, found.confidence) == ("a", "high") and found.text == "a in 9 of 10 trials, e.g.: it is a"
    assert found.evidence[1] == "b: 1 of 10 (trial 9)" and found.would_change == "less of it"
    two_each = _tally(1, "title", [(n // 2, saying("a")) for n in range(6)])
    assert two_each.text == "in all 6 servers (2 per trial): it is a"


def test_a_tie_is_mixed() -> None:
    found = _tally(1, "title", [(0, saying("a")), (1, saying("b"))])
    assert (found.verdict, found.confidence) == ("mixed", "low") and "as many say a as b (2 trials)" in found.text


def test_a_single_trial_speaks_for_itself() -> None:
    found = _tally(1, "title", [(4, saying("a"))])
    assert found.text == "it is a" and found.evidence[0] == "trial 4, the only one measured"


def member(trial: int, pool_gib: float, violation: float = -1.0) -> FrontMember:
    config = Config({"kv_cache_memory_bytes": int(pool_gib * GIB)})
    return FrontMember(trial=trial, configs={"s": config}, values=(1.0,), violations={"limit": violation})


def front(*trials: FrontMember) -> Front:
    meta = FrontMeta(
        study="s", model="m", gpu="g", engine="e", is_simulated=True, objectives=(), workload_hash="h"
    )  # fmt: skip
    return Front(meta, trials)


def test_others_that_keep_every_limit_make_it_a_matter_of_parameters() -> None:
    ill, full = member(0, 1.0, 0.5), known("steady", **QUIET | {"kv_usage": Gauge(0.6, 0.95)})
    assert elsewhere_of(front(ill, member(1, 2.0, 0.1)), ill, "s", [full]) is None
    found = elsewhere_of(front(ill, member(1, 4.0), member(2, 2.0), member(3, 0.5)), ill, "s", [full])
    assert found is not None and found.n_kept == 3
    assert "2 of them with a larger KV cache for this server (2 to 4 GiB against 1)" in found.told
    assert [(c.name, c.value) for c in found.changes] == [("kv_cache_memory_bytes", 2 * GIB)]
    quiet = elsewhere_of(front(ill, member(1, 4.0)), ill, "s", [known("steady", **QUIET)])
    assert quiet is not None and not quiet.changes, "a pool that is not full is not the reason"
