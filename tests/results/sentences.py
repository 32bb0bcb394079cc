"""Parts of sentences of the pages of results, with their numbers as the committed files have them.

Each function yields parts of one page. What else is told there in words has no file.
"""

from collections.abc import Iterator

import numpy as np

from tests.results import fedpg, pgfed, plgu, studies
from tests.results.files import (
    GLOBAL,
    PERSONALIZED,
    accuracies,
    evaluated,
    late,
    paper,
    percent,
    read_json,
    read_rows,
    short,
    signed,
    statistics,
)
from tests.results.tables import LAST_ROUNDS, with_the_second_seed
from tff_pfl.privacy import Accountant, default_delta, noise_of_mean
from tff_pfl.reports import paired_test


def of_attacks() -> Iterator[str]:
    """Means over seeds, in percent, and their differences in points."""
    tables = ("FedAvg, ", "Ditto, ")
    fedavg, ditto = (studies.mean_values("attacks/runs.csv", row) for row in tables)
    undisturbed = fedavg["none"]["mean"]
    robust = [
        mean
        for attack in ("scaled by 100", "noise")
        for aggregator, mean in fedavg[attack].items()
        if aggregator != "mean"
    ]
    yield f"is within {undisturbed - min(robust):.1f} points of the mean without attackers"
    behind = [
        max(means.values()) - means["geometric median"]
        for method in (fedavg, ditto)
        for attack, means in method.items()
    ]
    yield f"within {max(behind):.1f} points of the best under every attack"
    yield f"costs {undisturbed - fedavg['none']['geometric median']:.1f} points where there is none"
    behind = fedavg["inner product"]["mean"] - fedavg["inner product"]["multi-Krum"]
    yield f"multi-Krum is {behind:.0f} points below the mean"
    worst = [
        min(means["geometric median"] for means in method.values()) for method in (ditto, fedavg)
    ]
    yield "Ditto with the geometric median has {:.1f} %, FedAvg {:.1f} %".format(*worst)
    yield f"Ditto still has {ditto['scaled by 100']['mean']:.1f} %"


def of_compression() -> Iterator[str]:
    """Differences of means over seeds, in points."""
    means = studies.mean_accuracies("compression/runs.csv")
    most = max(
        abs(mean - means[f"{label.partition(' | ')[0]} | 32 bits"])
        for label, mean in means.items()
        if "bits" in label
    )
    yield f"all means are within {most:.1f} points of those of 32 bits"
    plain, *others = (
        means[f"FedAvg | {label}"]
        for label in ("32 bits", "top 10 %", "top 1 %", "top 1 %, fed back")
    )
    lost = [plain - mean for mean in others]
    yield f"FedAvg loses {lost[0]:.1f} points, and with error feedback none"
    yield f"it loses {lost[1]:.1f} points, and {lost[2]:.1f} with error feedback"


def of_digits() -> Iterator[str]:
    """Differences of means over seeds, in points."""
    means, in_global = (
        studies.mean_accuracies("digits/methods.csv", column)
        for column in ("personalized", "global")
    )
    fine_tuned = "fedbabu, fine_tune_learning_rate 0.01"
    yield f"At 0.01 it has {means[fine_tuned] - means['fedbabu']:.0f} points more."
    adapted = means["per_fedavg, inner_learning_rate 0.05"] - means["per_fedavg"]
    yield f"the personal models gain {adapted:.1f} points and the global one none"
    gain = in_global["feddyn, alpha 0.1"] - in_global["feddyn"]
    yield f"with alpha 0.1 the best of all, {gain:.1f} points above its default"
    trials = read_rows("digits/search/tuning.csv")
    scores = [float(trial["score"]) for trial in trials]
    yield f"{scores.count(max(scores))} of the {len(trials)} trials have the same highest score"
    found = [trial["trial"].split()[1] for trial in trials if trial["label"] == "search"][2:]
    near = [rate for rate in found if 0.08 <= float(rate.rstrip(",")) <= 0.17]
    yield f"search after its first two, {len(near)} have rates from 0.08 to 0.17"


def of_fedpg() -> Iterator[str]:
    """Accuracies as shares."""
    own, s_acc, g_acc, global_ = fedpg.accuracies_of("dir,cifar10,fedpg", deviations=True)
    yield f"L {own}, S {s_acc}, G {g_acc}, GM {global_}."
    metrics, in_paper = _fedpg("dir,fmnist,fedpg")
    difference = metrics["personalized/synthetic50_test/accuracy_mean"] - in_paper["s_acc_mean"]
    yield f"FedPG's S on Dir(0.1), which is {short(difference)} higher."
    metrics, in_paper = _fedpg("dir,fmnist,fedavg")
    difference = in_paper["gm_acc_mean"] - metrics["global/generalization_test/accuracy_mean"]
    yield f"FedAvg's global model is {short(difference)} below the paper's at the rate 0.1"
    metrics, _ = _fedpg("dir,fmnist,fedavg_uniform")
    difference = metrics["global/generalization_test/accuracy_mean"] - in_paper["gm_acc_mean"]
    yield f"as in FedPG, it is {short(difference)} above the paper's."
    runs = [_late_global(f"fedpg/dir,fmnist,{run}") for run in ("fedavg", "fedavg_uniform")]
    (low, high, mean), (low_equal, high_equal, mean_equal) = runs
    yield f"between {low} and {high} on the clients' own test examples, {mean} on average"
    yield f"between {low_equal} and {high_equal}, {mean_equal} on average."
    unequal = "fedpg/study/Pat-2_unequal_FedAvg"
    (*_, mean), (*_, mean_equal) = (_late_global(f"{unequal}{w}/seed0") for w in ("", "_uniform"))
    yield f"in unequal amounts, these averages are {mean} and, with equal weights, {mean_equal}."
    at_200 = []
    for method in ("M1_mean_direction", "M2_no_fairness", "FedPG", "M4_no_memory"):
        run = f"fedpg/study/Pat-2_{method}/seed0"
        own = evaluated(run)[200][f"{GLOBAL}_mean"]
        at_200.append(f"{short(own)} ({short(paper(run)['gm_acc_mean'])})")
    m1, m2, whole, m4 = at_200
    yield f"{m1.replace('(', '(paper ')} and {m2}; FedPG, {whole}, and M4, {m4}, are not there yet."
    yield from _of_seeds()
    metrics, in_paper = _fedpg("dir,fmnist,fedpg_gamma0.3")
    both = (metrics[f"{PERSONALIZED}_mean"], in_paper["l_acc_mean"])
    yield f"L at gamma = 0.3 rises less than in the paper ({', '.join(map(short, both))})"


def _of_seeds():
    """Of FedPG's study: which methods are level, what FedAvg's weights do, and rounding."""

    def of_global(variant):
        return fedpg.of_seeds(variant, "global/generalization_test")

    level = {
        "Dir_0.1": ("FedPG", "S-FedPG"),
        "Pat-2": ("FedPG", "M2_no_fairness"),
        "Pat-2_unequal": ("FedPG", "M2_no_fairness"),
    }
    apart = [
        np.ptp([of_global(f"{partition}_{method}").mean() for method in methods])
        for partition, methods in level.items()
    ]
    yield f"on average their global models are within {short(max(apart))} of one another."
    for partition in ("Pat-2", "Pat-2_unequal"):
        best = np.maximum(
            *(of_global(f"{partition}_{m}") for m in ("M1_mean_direction", "M4_no_memory"))
        )
        least = np.minimum(*(of_global(f"{partition}_{m}") for m in level[partition]))
        assert np.all(best < least)
    for partition in ("Dir_0.1", "Pat-2_unequal"):
        gains = of_global(f"{partition}_FedAvg_uniform") - of_global(f"{partition}_FedAvg")
        yield f"{', '.join(map(signed, gains[:-1]))} and {signed(gains[-1])}"
    here, there = (of_global(f"Dir_0.1_FedPG{gamma}")[2] for gamma in ("", "_gamma_1"))
    yield f"it is {short(there - here)} better after 2,000 rounds"
    assert of_global("Dir_0.1_FedPG_gamma_0.3")[2] == here


def _late_global(run):
    """The least, the greatest and the mean accuracy of the global model after round 1,000."""
    values = late(run, f"{GLOBAL}_mean")
    return tuple(map(short, (min(values), max(values), sum(values) / len(values))))


def _fedpg(run):
    return read_json(f"fedpg/{run}/evaluation.json")["metrics"], paper(f"fedpg/{run}")


def of_pfedmb() -> Iterator[str]:
    """Of fifteen clients, in points; of pairs, validation accuracies over the rounds."""
    rounds = evaluated("pfedmb/pairs/pfedmb_0.05")
    name = "personalized/local_validation/accuracy_mean"
    at = {number: percent(rounds[number][name]) for number in (10, 20, 30, 40)}
    correct = percent(rounds[40]["train/accuracy"], 1)
    yield (
        f"its validation accuracy is {at[10]} after 10 rounds, {at[20]} after 20, {at[30]} after "
        f"30 and {at[40]} after 40, when {correct} % of the training images"
    )
    at_20, at_last, below = {}, {}, {"two_classes": [], "dirichlet": []}
    for partition, differences in below.items():
        for method, rounds in LAST_ROUNDS.items():
            run = f"pfedmb/{partition}/{method}"
            both = [100 * accuracies(f"{run}/clients_round_{n}.csv").mean() for n in (20, rounds)]
            at_20[partition, method], at_last[partition, method] = both
            differences += [paper(run)["accuracy_percent"] - accuracy for accuracy in both]
    gains = {key: at_last[key] - at_20[key] for key in at_20}
    yield f"no run gains more than {max(gains.values()):.1f}"
    yield f"FedPer loses {-gains['dirichlet', 'fedper']:.1f} and IFCA"
    yield f"and IFCA {-gains['dirichlet', 'ifca']:.1f}, as those"
    ranges = [f"{min(values):.1f} to {max(values):.1f}" for values in below.values()]
    yield f"by {ranges[0]} points with two classes and by {ranges[1]} with Dirichlet"
    behind = at_20["two_classes", "local"] - at_20["two_classes", "pfedmb"]
    yield f"pFedMB is {behind:.1f} below it"
    ahead = at_20["dirichlet", "pfedmb"] - at_20["dirichlet", "local"]
    yield f"pFedMB is {ahead:.1f} above Local"
    yield from _with_moons_recipe(at_20)


def _with_moons_recipe(at_20) -> Iterator[str]:
    folder, found, in_paper = "pfedmb/moon_dirichlet", {}, {}
    for label in (*read_json(f"{folder}/tuning.json"), "pFedMB_0.03"):
        rounds = evaluated(f"{folder}/{label}/seed0")
        found[label] = {number: 100 * of[f"{PERSONALIZED}_mean"] for number, of in rounds.items()}
        in_paper[label] = paper(f"{folder}/{label}/seed0")["accuracy_percent"]
    with_0_03 = found.pop("pFedMB_0.03")
    above = {label: of[40] - in_paper[label] for label, of in found.items()}
    least, second, *others = sorted(above, key=above.get)
    at_40 = {label: of[40] for label, of in found.items()}
    more = [at_40[x] - at_20["dirichlet", x.lower()] for x in ("Local", "FedAvg")]
    yield f"Local has {more[0]:.2f} points more"
    yield f"FedAvg {more[1]:.2f}. All"
    before = [in_paper[x] - at_20["dirichlet", x.lower()] for x in ("Local", "FedAvg")]
    yield f"{second} by {above[second]:.2f}, {least} by {above[least]:.2f}, the others by"
    yield f"the others by {above[others[0]]:.2f} to {above[others[-1]]:.2f}; without"
    yield f"Local by {before[0]:.2f} and FedAvg by {before[1]:.2f}. What"
    yield f"the paper's first by {in_paper['pFedMB'] - in_paper['FedAvg']:.2f}, is"
    yield f"is {at_40['FedAvg'] - at_40['pFedMB']:.2f} below FedAvg"
    assert max(at_40, key=at_40.get) == "FedAvg" and min(at_40, key=at_40.get) == "FedFomo"
    assert at_40["FedAMP"] < at_40["IFCA"] and in_paper["FedAMP"] > in_paper["IFCA"]
    yield f"FedProx and FedPer are within {at_40['FedAvg'] - at_40['FedPer']:.2f} points"
    local, late = found["Local"], [found[x][40] - found[x][30] for x in ("pFedMB", "FedAvg")]
    yield f"after 20 rounds ({local[20]:.2f} then, {local[40]:.2f} after 40)"
    early = [found["FedAvg"][10] - found[label][10] for label in ("pFedMB", "FedAMP")]
    yield f"after 10 rounds they are {early[0]:.2f} and {early[1]:.2f} points behind FedAvg"
    yield f"in the last ten pFedMB still gains {late[0]:.2f}, FedAvg {late[1]:.2f}."
    yield f"it has {with_0_03[40]:.2f} after 40 rounds"
    second = {label: 100 * mean for label, mean in with_the_second_seed().items()}
    lower = [at_40[label] - mean for label, mean in second.items()]
    yield f"all six are {min(lower):.1f} to {max(lower):.1f} points lower"
    yield f"pFedMB is {second['FedAvg'] - second['pFedMB']:.2f} below FedAvg there"
    assert sorted(second, key=second.get) == sorted(second, key=at_40.get)
    fedavg, pfedmb = (
        [accuracies(f"{folder}/{label}/seed{i}/clients/round_000040.csv") for i in range(2)]
        for label in ("FedAvg", "pFedMB")
    )
    behind = [own - other for own, other in zip(fedavg, pfedmb, strict=True)]
    yield f"significant (p {paired_test(behind).p_value:.3f})"


def of_plgu() -> Iterator[str]:
    """Of a method beside the one that it extends: of its lowest 5 %, of the 98's, of its mean."""
    found = [
        _beside(*methods)
        for methods in (
            ("plgu_ghn", "pfedhn"),
            ("plgu_grep_all_batches", "fedrep"),
            ("plgu_lf", "ditto"),
        )
    ]
    ghn, grep, lf = found
    yield f"by {ghn[0]} points ({ghn[1]} of the 98), and the mean by {ghn[2]}."
    yield f"by {grep[0]} points ({grep[1]} of the 98), and the mean by {grep[2]}; in the paper"
    yield f"PLGU-LF beside Ditto: by {lf[0]} points, and the mean by {lf[2]}; in the paper {lf[3]}"
    yield f"In the paper it is {ghn[3]} and {ghn[4]}."
    yield f"in the paper {grep[3]} and {grep[4]}."
    yield f"in the paper {lf[3]} and {lf[4]}."
    rounds = evaluated("plgu/pfedhn")
    three = [percent(rounds[number][f"{PERSONALIZED}_mean"], 1) for number in (30, 35, 40)]
    yield f"({', '.join(three)} after 30, 35, 40 rounds)"
    lowest = {
        method: 100
        * statistics(accuracies(f"plgu/{method}/clients.csv", GLOBAL))["worst_5_percent"]
        for method in ("fedavg", "plgu_lf", "fedsam")
    }
    gains = [f"{lowest[method] - lowest['fedavg']:.1f}" for method in ("plgu_lf", "fedsam")]
    yield f"by {gains[0]} points from FedAvg to PLGU-LF, by {gains[1]} to FedSAM."
    yield f"The {ghn[0]} points by which the lowest 5 % of PLGU-GHN are above pFedHN's"
    yield from _of_plgu_controls()


def _of_plgu_controls() -> Iterator[str]:
    """How much a perturbation may change, what lifts a method without one, what the paper has."""
    tests = plgu.personalized_tests()
    bounds = [f"{max(-test.low, test.high):.2f}" for test in tests.values()]
    yield (
        f"at most {bounds[0]} points for PLGU-LF, by {bounds[1]} with the radius of SAM, by "
        f"{bounds[2]} for PLGU-GRep."
    )
    lf, grep = (f"{tests[f'{name}, rho 0'].difference:.2f}" for name in ("PLGU-LF", "PLGU-GRep"))
    yield f"What lifts PLGU-LF over Ditto, by {lf} points, and PLGU-GRep over FedRep, by {grep},"
    yield f"they are below, by {-plgu.lowest_of_hypernetworks():.2f} points"
    assert all(plgu.equal_columns())
    yield "Ditto's is FedAvg's, and so is PLGU-LF's without perturbation, to the last digit."
    personal, global_ = plgu.gains_of_paper()
    yield f"by {min(personal):.1f} to {max(personal):.1f} points of the mean of the personal models"
    yield f"above FedAvg's, by {global_[0]:.1f} and {global_[1]:.1f}."
    of_paper = paper("plgu/fedavg")["global_accuracy_percent_mean"]
    found = dict(row[:2] for row in plgu.of_global())["FedAvg"].split()[0]
    yield f"FedAvg has {of_paper} % with ResNet-18 there, {found} % with LeNet here."


def _beside(method, extended) -> list[str]:
    """Lowest 5 %, that of who has taken part, mean; in the paper, lowest 5 % and mean."""
    paths = [f"plgu/{name}/clients.csv" for name in (method, extended)]
    all_, extended_all = (statistics(accuracies(path)) for path in paths)
    of_98, extended_98 = (statistics(accuracies(path, of_selected=True)) for path in paths)
    expected, of_extended = paper(f"plgu/{method}"), paper(f"plgu/{extended}")
    keys = [f"personalized_accuracy_percent_{of}" for of in ("worst_5_percent", "mean")]
    differences = [
        100 * (all_["worst_5_percent"] - extended_all["worst_5_percent"]),
        100 * (of_98["worst_5_percent"] - extended_98["worst_5_percent"]),
        100 * (all_["mean"] - extended_all["mean"]),
        *(expected[key] - of_extended[key] for key in keys),
    ]
    return [f"{difference:.1f}" for difference in differences]


def of_privacy() -> Iterator[str]:
    """What is lost to the same method without privacy, in points."""
    means = studies.mean_values("privacy/fashion_mnist.csv", value="personalized")
    lost = {method: of["none"] - of["2"] for method, of in means.items()}
    yield (
        f"FedAvg loses {lost['FedAvg']:.1f} points, pFedMB {lost['pFedMB']:.1f}, FedPer "
        f"{lost['FedPer']:.1f} and Ditto {lost['Ditto']:.1f}."
    )
    lost = {epsilon: means["pFedMB"]["none"] - of for epsilon, of in means["pFedMB"].items()}
    yield (
        "pFedMB, whose branches are quotients of two noisy sums, loses "
        f"{lost['2']:.1f} points with epsilon 2, and {lost['4']:.1f} and {lost['8']:.1f} with 4 "
        "and 8."
    )
    gain = means["FedPer"]["2"] - means["FedAvg"]["none"]
    yield f"FedPer is still {gain:.1f} points above FedAvg without privacy"
    means = studies.mean_values("privacy/digits.csv", value="personalized")
    lost = {method: of["none"] - of["8"] for method, of in means.items()}
    yield (
        f"With epsilon 8 it loses {lost['FedAvg']:.1f} points, FedPer {lost['FedPer']:.1f}, Ditto "
        f"{lost['Ditto']:.1f}, pFedMB {lost['pFedMB']:.1f}."
    )
    accountant = Accountant(100, 40, delta=default_delta(100), sampling="poisson")
    noise = accountant.noise_multiplier(epsilon=2.0, rounds=50)
    yield f"With epsilon 2, the noise multiplier is {noise:.2f}."
    yield f"the mean has noise of {noise_of_mean(round(noise, 2), 40):.0f} clipping norms."
    yield f"still has {means['FedPer']['2']:.1f} %"


SENTENCES = {
    "privacy": of_privacy,
    "attacks": of_attacks,
    "compression": of_compression,
    "digits": of_digits,
    "fedpg": of_fedpg,
    "pfedmb": of_pfedmb,
    "pgfed": pgfed.sentences,
    "plgu": of_plgu,
}
"""By page."""
