"""Trains and evaluates a federation by the workers of a Dask cluster."""

import collections
import contextlib
import functools
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import distributed
import numpy as np
import tensorflow_federated as tff

from tff_pfl import runtime
from tff_pfl.clients.parted_store import forget_after, last_rounds, part_of
from tff_pfl.cluster.errors import ClusterError
from tff_pfl.cluster.recipes import Recipe
from tff_pfl.cluster.site import Order, Site
from tff_pfl.cluster.tree import folded
from tff_pfl.cluster.workers import Wanted, marked, versions
from tff_pfl.evaluation import ClientMetrics, Evaluator
from tff_pfl.experiment.experiment import Experiment
from tff_pfl.templates.parted_exchange import PartedExchange
from tff_pfl.templates.values import ProcessOutput

# The errors of calls whose worker has ended, or that of what they need.
_LOSSES = (
    distributed.client.FutureCancelledError,
    distributed.client.FuturesCancelledError,
    distributed.comm.CommClosedError,
    distributed.scheduler.KilledWorker,
)
_POLL = 0.5  # seconds between looks at which workers are there


class Team:
    """The workers that train an experiment, each of which owns some parts of the federation.

    A client belongs to part `client_id % num_parts`, and a part to a worker. Workers make the
    experiment by its recipe, and keep the data and the states of their clients. A round sends them
    the broadcast, and the ids of the cohort; it gets sums back.

    If a worker ends or hangs, its parts are computed again by others, from the states of the round
    before. The numbers are functions of the experiment and `num_parts`, and not of the workers.
    """

    def __init__(
        self,
        client: distributed.Client,
        experiment: Experiment,
        path: str | os.PathLike,
        *,
        num_parts: int,
        deadline: float,
    ):
        """Prepares the workers when they are needed.

        Args:
            client: A client of the cluster.
            experiment: The experiment, which has a recipe.
            path: The checkpoint of the run, which all workers see.
            num_parts: The number of parts; a power of two, and no fewer than workers.
            deadline: The seconds after which a call of a worker is given to others.
        """
        process = experiment.process
        self._client, self._experiment, self._process = client, experiment, process
        self._num_parts, self._deadline = num_parts, deadline
        self._exchanges = [PartedExchange(process, i) for i in range(len(process.exchanges))]
        prints = experiment.identity["fingerprints"]
        recipe = Recipe.of({**experiment.recipe, "fingerprints": prints})
        self._made = _Made(uuid.uuid4().hex, recipe, os.path.abspath(path), num_parts)
        self._address = client.scheduler.address
        self._lost: set[str] = set()
        self._order: list[str] = []  # of the workers
        self._bounds: list[int] = []  # between the parts of one worker and the next
        self._last: dict[int, str] = {}  # the worker that had a part last
        self._written: dict[int, int] = {}  # the number of rounds when a part was written last
        self._wanted: Wanted | None = None
        self.committed: int | None = None

    def commit(self, round_num: int) -> None:
        """Notes that so many rounds are committed, behind which the run does not go back."""
        if self.committed is None:  # the run begins or goes on
            forget_after(self._made.path, round_num)
            self._written = last_rounds(self._made.path)
        self.committed = round_num

    def next(self, state: Any, clients: Sequence[Any]) -> ProcessOutput:
        """Computes a round as `next` of the process does; the states stay with the workers.

        Args:
            state: The process's `ServerState`.
            clients: The cohort, of which the ids are used.
        """
        ids, round_num = [int(client.client_id) for client in clients], int(state.round_num)
        members = self._by_part(ids)
        downs: list[_Sent] = []
        own: list[dict[int, Any]] = []
        metrics: dict[str, Any] = collections.OrderedDict()
        for index, exchange in enumerate(self._exchanges):
            downs.append(_Sent(exchange.downlink(state)))
            messages = dict(zip(ids, exchange.own_messages(state, ids), strict=True))
            own.append({part: [messages[i] for i in found] for part, found in members.items()})

            def order(part, is_new, index=index):
                known = range(index + 1) if is_new else [index]
                return Order(members[part], {k: own[k][part] for k in known})

            nodes = self._call("train", members, order, downs, round_num, active=list(members))
            sums = self._whole(nodes, members, exchange)
            state, metrics[exchange.exchange.name] = exchange.finish(state, sums, ids)
        self._written |= dict.fromkeys(members, round_num + 1)
        for direction in ("down", "up"):
            each = (getattr(it.exchange, f"{direction}_bytes") for it in self._exchanges)
            metrics[f"bytes_{direction}_per_client"] = np.int64(sum(each))
        return ProcessOutput(state, [None] * len(ids), metrics)

    def _whole(self, nodes, members, exchange):
        found = folded(nodes, members, self._num_parts, exchange.merge)
        return found.get((self._num_parts, 0))

    def evaluate(
        self, name: str, server_state: Any, client_ids: Iterable[int], **arguments: Any
    ) -> list[tuple[np.ndarray, Any]]:
        """Calls a method of the evaluator for clients; returns the ids and the result of parts."""
        members = self._by_part(client_ids)
        found = self._call(
            "evaluate",
            members,
            lambda part, is_new: members[part],
            [_Sent(server_state)],
            int(server_state.round_num),
            name=name,
            arguments=arguments,
        )
        return [(np.asarray(members[part]), found[part]) for part in sorted(members)]

    def _by_part(self, client_ids) -> dict[int, list[int]]:
        members: dict[int, list[int]] = {}
        for client_id in client_ids:
            members.setdefault(part_of(int(client_id), self._num_parts), []).append(int(client_id))
        return dict(sorted(members.items()))

    def _load(self, members) -> dict[int, float]:
        """Returns the work of parts: examples of their clients, and as many for each as average."""
        sizes = self._experiment.members.sizes()
        return {part: sizes[ids].sum() + len(ids) * sizes.mean() for part, ids in members.items()}

    def _call(
        self,
        method: str,
        members: Mapping[int, Sequence[int]],
        order: Callable[[int, bool], Any],
        sent: Sequence["_Sent"],
        round_num: int,
        **named: Any,
    ) -> dict:
        """Calls a method of the sites for all parts.

        Args:
            method: The name of the method.
            members: The clients of each part.
            order: Returns the order for a part, also by whether its worker is new to it.
            sent: The values that each worker gets.
            round_num: The number of rounds done.
            **named: Further arguments.

        Returns:
            The results together.
        """
        waiting, load = list(members), self._load(members)
        results: dict = {}
        while waiting:
            calls = {}
            for address, owned in self._owners({part: load[part] for part in waiting}).items():
                chosen = [part for part in waiting if part in owned]
                others = [part for part in chosen if self._last.get(part) != address]
                moved = {part: self._written.get(part, 0) for part in others}
                if not chosen:
                    continue
                try:
                    values = [value.at(address, self._client, self._deadline) for value in sent]
                except (OSError, TimeoutError) as error:
                    self._lose(address, hangs=isinstance(error, TimeoutError))
                    continue
                orders = {part: order(part, part in moved) for part in chosen}
                work = self._wanted, self._made, method, self.committed, moved, orders, round_num
                call = self._client.submit(
                    _at_site, *work, values, named, workers=[address], pure=False
                )
                calls[call] = (address, chosen)
            for address, done, found in self._ended(calls):
                results |= found
                waiting = [part for part in waiting if part not in done]
                self._last |= dict.fromkeys(done, address)
        return results

    def _ended(self, calls):
        """Yields the worker, the parts and the results of calls that do not lose their worker."""
        start = time.monotonic()
        while calls:
            with contextlib.suppress(TimeoutError, *_LOSSES), self._client.as_current():
                distributed.wait(list(calls), timeout=_POLL, return_when="FIRST_COMPLETED")
            alive = self._alive()
            for call, (address, parts) in list(calls.items()):
                is_waited_for = call.status == "pending" and address in alive
                is_late = time.monotonic() - start > self._deadline
                if is_waited_for and not is_late:
                    continue
                del calls[call]
                try:
                    if call.status in ("finished", "error"):
                        found = self._client.gather(call, direct=True)  # not by the scheduler
                        yield address, parts, found
                        continue
                except _LOSSES:
                    pass
                except OSError as error:  # such as a full disk
                    raise ClusterError(
                        f"The worker {address} cannot go on: {error}. Once this is mended, the "
                        "same command with --resume continues (in Python, resume=True)."
                    ) from error
                self._lose(address, hangs=is_waited_for)
                for part in parts:  # whose worker may be asked again, and then begins anew
                    self._last.pop(part, None)
                call.cancel()

    def _lose(self, address: str, hangs: bool) -> None:
        """Leaves out a worker that hangs; one that has ended is no longer with the scheduler."""
        print(f"The worker {address} is lost; its clients are computed again.", file=sys.stderr)
        if hangs:
            self._lost.add(address)
        time.sleep(_POLL)  # in which the scheduler notes that a worker has ended

    def _alive(self) -> set[str]:
        try:
            found = self._client.scheduler_info(n_workers=-1)["workers"]
        except (OSError, RuntimeError, KeyError) as error:
            raise ClusterError(
                f"The scheduler {self._address} has ended. The same command with "
                "--resume continues with another one (in Python, resume=True)."
            ) from error
        return set(found) - self._lost or set(found)  # better those that hung than nobody

    def _wait_for_workers(self) -> list[str]:
        if not self._alive():
            print(f"waiting for workers of {self._address}", file=sys.stderr)
        while not (alive := self._alive()):
            time.sleep(_POLL)
        return sorted(alive)

    def _owners(self, load: Mapping[int, float]) -> dict[str, range]:
        """Returns the parts of each worker, which are neighbours and have about the same load."""
        alive = self._wait_for_workers()
        workers = [it for it in self._order if it in alive]
        workers += [it for it in alive if it not in workers]
        self._order = workers
        loads = [load.get(part, 0.0) for part in range(self._num_parts)]
        self._bounds = divided(loads, len(workers), self._bounds)
        return {it: range(*self._bounds[i : i + 2]) for i, it in enumerate(workers)}

    @contextlib.contextmanager
    def working(self) -> Iterator["Team"]:
        """Checks workers against a mark in the shared folder, for the duration of the context."""
        with marked(self._made.path) as mark:
            self._wanted = Wanted(mark, versions())
            yield self

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        """The evaluator of the experiment, whose clients are evaluated by the workers."""
        return _TeamEvaluator(self, self._experiment.evaluator)


def divided(loads: Sequence[float], num_workers: int, before: Sequence[int] = ()) -> list[int]:
    """Divides parts among workers, each of which gets neighbours.

    Args:
        loads: The load of each part.
        num_workers: The number of workers.
        before: The bounds so far, which stay if the largest load grows by a tenth at most.

    Returns:
        The bounds: worker `i` has the parts from `bounds[i]` to `bounds[i + 1] - 1`.
    """
    ends = np.concatenate([[0.0], np.cumsum(loads)])
    ideal = np.arange(1, num_workers) * ends[-1] / num_workers
    nearest = np.abs(ends[:, np.newaxis] - ideal).argmin(axis=0)
    bounds = [0, *nearest.tolist(), len(loads)]
    if len(before) == len(bounds):
        largest_before, largest = (np.diff(ends[list(it)]).max() for it in (before, bounds))
        if largest_before <= 1.1 * largest:
            return list(before)
    return bounds


class _Sent:
    """A value that is sent to workers, once to each."""

    def __init__(self, value: Any):
        self._value = _plain(value)
        self._at: dict[str, distributed.Future] = {}

    def at(self, address: str, client: distributed.Client, seconds: float) -> distributed.Future:
        """Returns the value at a worker, which must take it in so many seconds."""
        if address not in self._at:
            # `timeout` of `scatter` does not cover a worker that hangs.
            options = {"workers": [address], "direct": True, "hash": False, "asynchronous": True}
            scatter = functools.partial(client.scatter, self._value, **options)
            self._at[address] = client.sync(scatter, callback_timeout=seconds)
        return self._at[address]


def _plain(value):
    """Returns a value with NumPy arrays, which can be pickled."""
    if isinstance(value, Mapping):
        return type(value)((key, _plain(it)) for key, it in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_plain, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return np.asarray(value)


class _Made(NamedTuple):
    """All that makes a site.

    Attributes:
        token: The name of the training.
        recipe: The recipe of the experiment.
        path: The checkpoint of the run.
        num_parts: The number of parts.
    """

    token: str
    recipe: Recipe
    path: str
    num_parts: int


_sites: dict[str, tuple[Any, Site]] = {}  # of this process: the last training's, and its context


def _at_site(
    wanted: Wanted, made: _Made, method: str, committed, moved, orders, round_num, sent, named
):
    """Calls a method of the site of this process, which is made if it is not there."""
    wanted.check(distributed.get_worker())
    install = tff.framework.get_context_stack().install
    if made.token not in _sites:
        _sites.clear()
        context = runtime.create_graph_context()  # keeps what is traced
        with install(context):
            site = Site(made.recipe.experiment(), made.path, made.num_parts)
            _sites[made.token] = context, site
    context, site = _sites[made.token]
    with install(context):
        site.take_over(moved)
        return getattr(site, method)(committed, orders, round_num, sent, **named)


class _TeamEvaluator(Evaluator):
    """An evaluator whose clients are evaluated by a team; it has the options of another one."""

    def __init__(self, team: Team, evaluator: Evaluator):
        vars(self).update(vars(evaluator))
        self._team = team

    def on_own_examples(self, server_state, source, split=None) -> ClientMetrics:
        """Evaluates each client on its own examples."""
        found = self._metrics("on_own_examples", server_state, split=split)
        if self.is_sample:
            population = int(np.count_nonzero(self._dataset.sizes(split or self._options.split)))
            found = found._replace(population=population)
        return found

    def on_pool(self, server_state, source) -> ClientMetrics:
        """Evaluates on other clients' examples."""
        return self._metrics("on_pool", server_state)

    def _metrics(self, name, server_state, **arguments) -> ClientMetrics:
        parts = self._team.evaluate(name, server_state, self.client_ids, **arguments)
        return ClientMetrics.together([found for _, found in parts])

    def losses(self, server_state, source, client_ids) -> np.ndarray:
        """Computes the loss of the global model on clients' training examples."""
        parts = self._team.evaluate("losses", server_state, client_ids)
        loss_of: dict[int, float] = {}
        for ids, losses in parts:
            loss_of |= zip(ids.tolist(), losses, strict=True)
        return np.array([loss_of[int(i)] for i in client_ids])

    def client_snapshot(self, server_state, source) -> dict[str, np.ndarray]:
        """Returns arrays of the clients' states."""
        parts = self._team.evaluate("client_snapshot", server_state, self.client_ids)
        order = np.argsort(np.concatenate([ids for ids, _ in parts]))
        found = [arrays for _, arrays in parts]
        return {name: np.concatenate([it[name] for it in found])[order] for name in found[0]}
