"""The leaderboard: from lines about single runs to tables, paired comparisons and the page.

Differences are PONN-DR minus a method over the seeds that both finished, in points (hundredths of the reward's range,
or of all rows). PONN-DR is at least tied with a method where its mean is not lower, or where the 95 % interval of the
difference contains 0 and it falls short by at most half a point.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

import numpy as np

from peer_space import BEST_FIXED, CURRENT_PRACTICE, METHODS, OURS, STANDING
from peer_worlds import PARAMETRIC, REAL, SIMULATED, UCI
from peers.trials import TRIAL_SECONDS

TIED = 0.5  # points
FEWEST = 10  # seeds before a world is decided
WANTED_SHARE = 0.9  # of the worlds
WANTED_ACCURACY = {"pendigits paper": 98.0, "satimage paper": 88.5, "optdigits paper": 95.0}  # of PONN-DR, points
PAPER_SEEDS = 25  # over which that is asked
MOST_SECONDS = 60  # of PONN-DR on a UCI log, on two cores
LOOKED_AT = (0, 1, 3)  # seeds of UCI worlds and of breast-cancer that PONN-DR was designed with, test rows included
MEASURES = ("value", "accuracy")
PICTURE = "images/leaderboard.svg"  # beside the page
TABLES = "leaderboard-worlds.md"
# A method is not run on further seeds of a world once it is more than so many points of value behind PONN-DR on each of
# the first so many: others would hardly turn that round, and there are more runs than days. Of two methods that are
# worth the same and whose paired differences have a standard deviation of USUAL_SPREAD points, each rule would give up
# one in 2,900 at most. On satimage and optdigits (paper) it was 0.5 to 1.5 for ten methods; under the hard scaling logs
# differ far more, so the points grow with the spread of PONN-DR's own value over seeds where that is larger.
USUAL_SPREAD = 1.2
GIVEN_UP = ((1, 10.0), (2, 3.0), (3, 2.0), (5, 1.0))  # seeds, points
Line = Mapping[str, Any]
Lines = Mapping[int, Line]  # by seed


# Numbers -------------------------------------------------------------------------------------------------


def half_width(found: Sequence[float]) -> float | None:
    """95 % half-width of the mean by Student's distribution; None for a single seed."""
    from scipy.stats import t

    if len(found) < 2:
        return None
    return float(t.ppf(0.975, len(found) - 1) * stdev(found) / np.sqrt(len(found)))


def paired_p(gains: Sequence[float]) -> float | None:
    """Two-sided p-value of Student's paired test that the mean gain is 0; None for a single seed."""
    from scipy.stats import t

    if len(gains) < 2:
        return None
    error = stdev(gains) / np.sqrt(len(gains))
    return float(2 * t.sf(abs(mean(gains)) / error, len(gains) - 1)) if error else float(mean(gains) == 0)


def spread(found: Sequence[float]) -> dict[str, Any] | None:
    """Mean and half-width; None where there is nothing."""
    return {"mean": mean(found), "half_width": half_width(found)} if found else None


def points(lines: Lines, measure: str) -> dict[int, float]:
    """A measure by seed, in points; runs that failed have none."""
    return {seed: 100 * line[measure] for seed, line in lines.items() if line.get(measure) is not None}


def differences(own: Lines, other: Lines, measure: str) -> list[float]:
    """PONN-DR minus another method, seed by seed, where both finished."""
    ours, theirs = points(own, measure), points(other, measure)
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def gained(own: Lines, other: Lines, measure: str) -> dict[str, Any] | None:
    """PONN-DR minus another method over the seeds that both finished, and whether it is at least tied."""
    gains = differences(own, other, measure)
    if not gains:
        return None
    found = {"seeds": len(gains), "mean": mean(gains), "half_width": half_width(gains), "p": paired_p(gains)}
    return found | {"at_least_tied": at_least_tied(found["mean"], found["half_width"])}


def at_least_tied(gain: float, width: float | None) -> bool | None:
    """Best, or tied: the interval contains 0 and at most TIED points are missing. None: one seed says nothing."""
    if width is None:
        return None
    return gain >= 0 or (gain + width >= 0 and gain >= -TIED)


def given_up(own: Lines, lines: Lines) -> bool:
    """Was a method so far behind on the first seeds that it is not run on others?"""
    gains, scale = differences(own, lines, "value"), unrest(own)
    return any(len(gains) >= seeds and min(gains[:seeds]) > most * scale for seeds, most in GIVEN_UP)


def unrest(own: Lines) -> float:
    """How many times the usual spread PONN-DR's value has over the seeds of a world; at least once."""
    values = [*points(own, "value").values()]
    return max(1.0, stdev(values) / USUAL_SPREAD) if len(values) > 1 else 1.0


def told_of(own: Lines, lines: Lines) -> dict[str, Any]:
    """One method in one world."""
    finished = [line for line in lines.values() if "failed" not in line]
    failed = [line["failed"] for line in lines.values() if "failed" in line]
    found: dict[str, Any] = {"seeds": len(lines), "failed": len(failed), "why": failed[:1]}
    found["given_up"] = len(lines) < min(FEWEST, len(own)) and given_up(own, lines)
    for measure in MEASURES:
        found[measure] = spread([*points(lines, measure).values()])
        found[f"gain in {measure}"] = gained(own, lines, measure)
    for name in ("seconds", "cpu_seconds", "peak_bytes"):
        found[name] = (
            mean(line[name] for line in finished if name in line) if any(name in x for x in finished) else None
        )
    kinds = ("trials", "failed_on_all_rows")
    trials = [trial for line in lines.values() for kind in kinds for trial in line.get(kind, ())]
    found["trials"], found["trials_failed"] = len(trials), sum("failed" in trial for trial in trials)
    found["fewest_trials"] = min((len(line["trials"]) for line in finished if "trials" in line), default=None)
    drawn = [line.get("details", {}).get("stochastic", {}) for line in finished]
    new = [value for seed, value in points(lines, "accuracy").items() if seed not in LOOKED_AT]
    found["accuracy on new seeds"] = spread(new)
    found["drawn"] = {measure: spread([100 * one[measure] for one in drawn if one]) for measure in MEASURES}
    for name in ("error", "error_of_gain"):
        errors = [100 * line[name] for line in finished if name in line]
        found |= {name: mean(errors)} if errors else {}
    return found


def summary(lines: Iterable[Line], absent: Mapping[str, str]) -> dict[str, Any]:
    """Per world and method: means, intervals, paired gains, cost; and what follows from them.

    absent: environments that are not there now, and why; told where no result of theirs is there either.
    """
    sorted_lines: dict[str, dict[str, dict[int, Line]]] = {}
    for line in lines:
        sorted_lines.setdefault(line["world"], {}).setdefault(line["method"], {})[line["seed"]] = line
    worlds = {}
    for world in (*SIMULATED, *REAL):
        by_method = sorted_lines.get(world, {})
        own = by_method.get(OURS, {})
        methods = {name: told_of(own, by_method[name]) for name in (*METHODS, *STANDING) if name in by_method}
        best = spread([100 * line["best_value"] for line in own.values() if "best_value" in line])
        if methods:
            worlds[world] = {"methods": methods, "best possible": best, **verdicts(methods)}
    compared = {METHODS[name].home for one in worlds.values() for name in one["methods"] if name in METHODS}
    missing = {home: why for home, why in absent.items() if home not in compared}
    return {"worlds": worlds, "absent": missing, "bars": bars(worlds)}


def verdicts(methods: Mapping[str, Any]) -> dict[str, Any]:
    """What a world says of PONN-DR; None where nothing is to be said yet."""
    others = {name: one for name, one in methods.items() if name != OURS}
    found: dict[str, Any] = {"seeds": methods.get(OURS, {"seeds": 0})["seeds"]}
    enough = found["seeds"] >= FEWEST
    for measure in MEASURES:
        gains = {name: one[f"gain in {measure}"] for name, one in others.items()}
        said = {name: stands(others[name], gain) for name, gain in gains.items() if gain}
        found[f"beaten in {measure} by"] = [name for name, good in said.items() if good is False]
        found[f"decided in {measure}"] = enough and bool(said) and None not in said.values()
    gains = [one["gain in value"] for one in others.values() if one["gain in value"]]
    found["worst"] = all(gain["mean"] < 0 for gain in gains) if gains and enough else None
    practice = others.get(CURRENT_PRACTICE, {}).get("gain in value")
    known = practice is not None and practice["half_width"] is not None and enough
    found["below current practice"] = practice["mean"] + practice["half_width"] < 0 if known else None
    return found


def stands(one: Mapping[str, Any], gain: Mapping[str, Any]) -> bool | None:
    """Is PONN-DR at least tied? None before there are enough seeds, unless the method was given up.

    One seed is enough where a method was given up and is far behind in this too.
    """
    if one["given_up"] and gain["at_least_tied"] is None:
        return True if gain["mean"] > GIVEN_UP[0][1] else None
    return gain["at_least_tied"] if one["given_up"] or one["seeds"] >= FEWEST else None


def bars(worlds: Mapping[str, Any]) -> dict[str, Any]:
    """Over the worlds of the harness, without the real tables: shares and counts."""
    there = {name: one for name, one in worlds.items() if name in SIMULATED}
    found: dict[str, Any] = {"worlds": len(SIMULATED), "seen": len(there)}
    found["fewest seeds"] = min(there[name]["seeds"] if name in there else 0 for name in SIMULATED)
    given_up = [sum(told["given_up"] for told in one["methods"].values()) for one in there.values()]
    found["given up"] = [many for many in given_up if many]
    found["complete"] = sum(all_have_enough(one["methods"]) for one in there.values())
    found["every method in"] = sum(set(METHODS) <= set(one["methods"]) for one in there.values())
    for measure in MEASURES:
        decided = {name: one for name, one in there.items() if one[f"decided in {measure}"]}
        good = [name for name, one in decided.items() if not one[f"beaten in {measure} by"]]
        found[f"best or tied in {measure}"] = {"worlds": len(good), "of": len(decided)}
    for verdict in ("worst", "below current practice"):
        decided = {name: one[verdict] for name, one in there.items() if one[verdict] is not None}
        found[verdict] = {"in": [name for name, missed in decided.items() if missed], "of": len(decided)}
    return found


def all_have_enough(methods: Mapping[str, Any]) -> bool:
    """Has every method been run on enough seeds of a world?"""
    return all(name in methods and methods[name]["seeds"] >= FEWEST for name in (*METHODS, *STANDING))


# The page ------------------------------------------------------------------------------------------------

FAR_BEHIND = ", ".join(
    f"{most:g} point{'s' * (most != 1)} on " + ("the first seed" if seeds == 1 else f"each of the first {seeds} seeds")
    for seeds, most in GIVEN_UP
)
INTRODUCTION = """# Leaderboard

PONN-DR beside ponn's other methods and the tools people use today, on the same logs. Made by `make peers` from the raw
lines in `benchmarks/results/peer_runs`; nothing on this page is written by hand.
"""
RULES = f"""## How it is done

A seed is a log, a split into training, validation and test rows, and the seed of every method. All get
the same rows; peers get the same design columns and propensities of Step A (EconML refuses to be given any), ponn's
own methods read the table, estimate propensities themselves and, but for PONN-DR, keep 30 % of what they are given to
stop training. Their networks have rectified units here, POEM does not clip: both are better than the paper's. Each
peer and each method tries six settings (`benchmarks/peer_space.py`), unless {TRIAL_SECONDS} seconds of processor time
are over before (half a minute in older runs; said where it was so): learned from training rows, valued on validation
rows by the same doubly robust scores. The best learns again from both parts and is judged on the test rows by the
truth; PONN-DR chooses its settings by itself, from the same rows. obp's networks are trained for 40 epochs, not for
its default of 200 (`docs/decisions/036-peers.md` has a comparison).

A method that is behind by more than one of these, on the seeds it was run on first, is not run on further seeds of that
world ("given up"):
{FAR_BEHIND};
in proportion more where the standard deviation of PONN-DR's own value over seeds is above {USUAL_SPREAD} points. Its
mean then rests on fewer seeds, until everyone is asked for (`make peers EVERYONE=yes`). A world is decided when PONN-DR
and all that were not given up have {FEWEST} seeds.

Values and accuracies are in points: hundredths of the reward's range, and of the test rows in which the best action is
taken. Methods take the action that seems best; what drawing from PONN-DR's stochastic policy would get stands below
it. ± is the 95 % half-width over seeds. A difference is PONN-DR minus the method, paired over the seeds that both
finished, with the p-value of Student's paired test. PONN-DR is *best* where its mean is not lower, *tied* where the
interval of the difference contains 0 and at most {TIED:g} points are missing, else *beaten*. Seconds are of processor
time on one core, tuning included; memory is the most that the process held, libraries included.
"""


def number(found: Mapping[str, Any] | None, sign: str = "") -> str:
    """Mean and half-width as text."""
    if found is None:
        return "–"
    width = found["half_width"]
    return f"{found['mean']:{sign}.2f}" + (" (one seed)" if width is None else f" ± {width:.2f}")


def tested(gain: Mapping[str, Any] | None) -> str:
    """The p-value of a gain as text; nothing where there is none."""
    if gain is None or gain["p"] is None:
        return ""
    return " (p < 0.001)" if gain["p"] < 0.001 else f" (p = {gain['p']:.3f})"


def said(gain: Mapping[str, Any] | None) -> str:
    """What a gain says of PONN-DR."""
    if gain is None or gain["at_least_tied"] is None:
        return "undecided"
    if not gain["at_least_tied"]:
        return "**beaten**"
    return "best" if gain["mean"] >= 0 else "tied"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows), ""]


def bar_lines(found: Mapping[str, Any], logs: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per bar."""
    one, enough = found["bars"], found["bars"]["fewest seeds"] >= FEWEST
    lines = [] if enough else [f"**Not finished**: some world has {one['fewest seeds']} of {FEWEST} seeds.", ""]
    if one["every method in"] < one["worlds"]:
        lines += [
            f"Every method was run in {one['every method in']} of {one['worlds']} worlds; what is said of the others "
            "is said of the methods that were run.",
            "",
        ]
    for measure in MEASURES:
        share = one[f"best or tied in {measure}"]
        if not share["of"]:
            lines.append(f"- Best or tied in {measure} against every method: no world decided yet.")
            continue
        holds = "holds" if share["worlds"] >= WANTED_SHARE * one["worlds"] else "missed so far"
        lines.append(
            f"- Best or tied in {measure} against every method: {share['worlds']} of {share['of']} worlds decided, "
            f"{one['worlds']} in all; wanted {WANTED_SHARE:.0%} of all: {holds}."
        )
    lines.append(f"- Every method has {FEWEST} seeds in {one['complete']} of {one['worlds']} worlds.")
    few = one["given up"]
    if few:
        many = f"{min(few)} to {max(few)}" if min(few) < max(few) else f"{max(few)}"
        told = f" In {len(few)} other{'s' * (len(few) > 1)} {many} methods were given up:"
        lines[-1] += told + " that PONN-DR beats these rests on few seeds."
    lines += accuracy_lines(found["worlds"]) + cost_lines(found["worlds"], logs)
    lines.append(f"- Never worst: {never(one['worst'])}.")
    lines.append(f"- Never below current practice by more than noise: {never(one['below current practice'])}.")
    return [*lines, ""]


def accuracy_lines(worlds: Mapping[str, Any]) -> list[str]:
    """Accuracy of PONN-DR on the paper's tables."""
    lines = []
    for name, wanted in WANTED_ACCURACY.items():
        own = worlds.get(name, {"methods": {}})["methods"].get(OURS)
        if own and own["accuracy"]:
            holds = "holds" if own["accuracy"]["mean"] >= wanted else "**missed**"
            few = "" if own["seeds"] >= PAPER_SEEDS else f", {PAPER_SEEDS} wanted"
            told = f"{number(own['accuracy'])} over {own['seeds']} seeds{few}; wanted {wanted:.1f}: {holds}"
            told += f". On seeds that it was not designed with: {number(own['accuracy on new seeds'])}"
            drawn = own["drawn"]["accuracy"]
            told += f". Drawn from its stochastic policy: {number(drawn)}" if drawn else ""
            lines.append(f"- Accuracy of PONN-DR on {name}: {told}.")
    return lines


def cost_lines(worlds: Mapping[str, Any], logs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Seconds of PONN-DR on the UCI logs: by the clock on two cores, where that was measured, and of one core."""
    lines = []
    if logs:
        slowest = {one["world"]: max(same["seconds"] for same in logs if same["world"] == one["world"]) for one in logs}
        told = ", ".join(f"{name} {seconds:.0f}" for name, seconds in slowest.items())
        holds = "holds" if max(slowest.values()) <= MOST_SECONDS else "**missed**"
        lines.append(
            f"- Seconds of PONN-DR by the clock on two cores, {len(logs)} logs, of each kind the slowest: {told}; "
            f"wanted {MOST_SECONDS}: {holds}."
        )
    own = {name: worlds[name]["methods"].get(OURS, {}).get("cpu_seconds") for name in UCI if name in worlds}
    told = ", ".join(f"{name} {seconds:.0f}" for name, seconds in own.items() if seconds is not None)
    return [*lines, f"- Seconds of PONN-DR on one core: {told}."] if told else lines


def growth_lines(sizes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Time and memory of PONN-DR by the number of rows."""
    if not sizes:
        return []
    head = ("rows", "seconds of processor time", "milliseconds per row", "memory")
    rows = [
        (
            f"{one['rows']:,}",
            f"{one['cpu_seconds']:.0f}",
            f"{one['milliseconds_per_row']:.2f}",
            f"{one['peak_bytes'] / 2**20:.0f} MB",
        )
        for one in sizes
    ]
    return ["## Time by the number of rows", "", "A parametric world, 20 features, 5 actions.", "", *table(head, rows)]


def never(missed: Mapping[str, Any]) -> str:
    """A bar that should never be missed."""
    if not missed["of"]:
        return "no world decided yet"
    return f"**missed** in {', '.join(missed['in'])}" if missed["in"] else f"holds in all {missed['of']} worlds decided"


def absent_lines(absent: Mapping[str, str]) -> list[str]:
    """Peers that could not be installed."""
    return [f"**NOT COMPARED**: {home}. Its environment could not be made: {why}\n" for home, why in absent.items()]


def overview(worlds: Mapping[str, Any]) -> list[str]:
    """Worlds x methods: the mean value, the best of a world in bold, in brackets the seeds where they are few."""
    names = [name for name in (*METHODS, *STANDING) if any(name in one["methods"] for one in worlds.values())]
    rows = []
    for name in names:
        cells = [value_cell(one, name) for one in worlds.values()]
        rows.append((name, *cells))
    return table(("mean value", *worlds), rows)


def value_cell(world: Mapping[str, Any], name: str) -> str:
    """A method's mean value in a world."""
    one = world["methods"].get(name)
    if one is None:
        return "not run"
    if one["value"] is None:
        return f"failed {one['failed']} of {one['seeds']}"
    best = max(each["value"]["mean"] for each in world["methods"].values() if each["value"])
    shown = f"{one['value']['mean']:.2f}"
    few = f" ({one['seeds']})" if one["seeds"] < FEWEST else ""
    return (f"**{shown}**" if one["value"]["mean"] >= best else shown) + few


def world_lines(name: str, world: Mapping[str, Any]) -> list[str]:
    """Everything about one world, best value first."""
    methods = world["methods"]
    order = sorted(methods, key=lambda one: -methods[one]["value"]["mean"] if methods[one]["value"] else np.inf)
    head = ("method", "seeds", "value", "accuracy", "PONN-DR gains in value", "in accuracy", "so PONN-DR is")
    lines = [f"## {name}", "", about(name, world), ""]
    rows = [cells for one in order for cells in (method_cells(one, methods[one]), *drawn_cells(one, methods[one]))]
    return [*lines, *table((*head, "seconds", "memory"), rows)]


def drawn_cells(name: str, one: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A line of what a method's stochastic policy gets, where that was told."""
    drawn = one["drawn"]
    if drawn["value"] is None:
        return []
    return [(f"{name}, actions drawn", str(one["seeds"]), *(number(drawn[each]) for each in MEASURES), *[""] * 5)]


def about(name: str, world: Mapping[str, Any]) -> str:
    """What kind of world."""
    best = world["best possible"]
    known = f" The best possible value is {best['mean']:.2f}." if best else ""
    if name in PARAMETRIC:
        return "Parametric: " + ", ".join(f"{key} {value}" for key, value in PARAMETRIC[name].items()) + "." + known
    if name == "hillstrom":
        return (
            "A real trial of e-mails, three arms, reward a visit. One half is biased by rejection with known "
            "propensities and learned from, the other stays as randomised and values the policies by IPS. Seeds are "
            "new splits of the same customers, so their intervals are too narrow; one split's own standard error is "
            "given. "
        ) + nothing_to_gain(world["methods"])
    if name == "warfarin":
        return (
            "Real patients of the IWPC cohort: the dose class (under 21, to 49, over 49 mg a week) that suited each is "
            "known, so the reward of every class is. A doctor's choice by weight and age is simulated, mixed with 30 % "
            "of uniform choice. "
        ) + nothing_to_gain(world["methods"])
    return ("A simulated clinic." if name == "breast-cancer" else "A UCI table, labels as actions.") + known


def nothing_to_gain(methods: Mapping[str, Any]) -> str:
    """Is PONN-DR clearly better than one action for all?"""
    gain = methods.get(BEST_FIXED, {}).get("gain in value")
    if not gain or gain["half_width"] is None:
        return "Verdict: not enough seeds yet."
    error = methods[OURS].get("error_of_gain", 0.0)  # of one split: splits of the same customers are hardly new ones
    width = max(gain["half_width"], 1.96 * error)
    if gain["mean"] - width > 0:
        return f"Verdict: better than one action for all, by {gain['mean']:.2f} ± {width:.2f} points."
    return (
        f"Verdict: nothing to gain over one action for all ({gain['mean']:+.2f} ± {width:.2f} points); that simpler "
        "rule may do as well."
    )


def method_cells(name: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    """One method's line."""
    seeds = str(one["seeds"]) + (", given up" if one["given_up"] else "")
    seeds += f", failed in {one['failed']} of {one['seeds']}" if one["failed"] else ""
    asked = len(METHODS[name].trials) if name in METHODS else 0
    few = one["fewest_trials"] is not None and one["fewest_trials"] < asked
    seeds += f", time for {one['fewest_trials']} of {asked} trials" if few else ""
    seeds += f", {one['trials_failed']} of {one['trials']} trials failed" if one["trials_failed"] else ""
    value = number(one["value"]) + (f" (error {one['error']:.2f})" if "error" in one else "")
    gains = [one[f"gain in {measure}"] for measure in MEASURES]
    shown = ["", "", ""]
    if name != OURS:
        verdict = [said(gain) for gain in gains if gain] or ["undecided"]
        shown = [
            *(number(gain, "+") + tested(gain) for gain in gains),
            verdict[0] if len(set(verdict)) == 1 else " / ".join(verdict),
        ]
    seconds = "" if one["cpu_seconds"] is None else f"{one['cpu_seconds']:.1f}"
    memory = "" if one["peak_bytes"] is None else f"{one['peak_bytes'] / 2**20:.0f} MB"
    return name, seeds, value, number(one["accuracy"]), *shown, seconds, memory


def page(
    found: Mapping[str, Any], sizes: Sequence[Mapping[str, Any]] = (), logs: Sequence[Mapping[str, Any]] = ()
) -> str:
    """The summary; sizes: what learning_time_by_rows.py measured, logs: what learning_time_on_uci_logs.py did."""
    lines = [INTRODUCTION, *absent_lines(found["absent"]), "## What holds", "", *bar_lines(found, logs)]
    looked_at = ", ".join(map(str, LOOKED_AT))
    lines += [f"PONN-DR was first designed while looking at seeds {looked_at} of some worlds.", ""]
    lines += [
        "## At a glance",
        "",
        f"![By how many points PONN-DR is ahead, method by method and world by world]({PICTURE})",
        "",
    ]
    lines += [f"The numbers behind it: [every world and method]({TABLES}).", "", *growth_lines(sizes), RULES]
    return "\n".join(lines).rstrip() + "\n"


def tables_page(found: Mapping[str, Any]) -> str:
    """The tables behind the summary: the mean values, and every world with every method."""
    worlds = found["worlds"]
    lines = ["# Leaderboard: every world", "", "The tables behind the [leaderboard](leaderboard.md).", ""]
    lines += ["## Mean value in every world", "", f"In brackets the seeds where there are fewer than {FEWEST}.", ""]
    lines += overview(worlds)
    for name, world in worlds.items():
        lines += world_lines(name, world)
    return "\n".join(lines).rstrip() + "\n"
