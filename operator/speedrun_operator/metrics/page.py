"""Figures as the text that Prometheus reads.

Series end with what they are about, since each scrape is made from nothing but what is there now. Cardinality is
bounded: labels take their values from short lists (phases, outcomes, HTTP statuses, logins) and from watched
namespaces, and only so many Speedruns have series of their own: the live ones first, then those that finished last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from speedrun_operator.api.phases import Phase
from speedrun_operator.distribution import Counted
from speedrun_operator.listening import Answer, Page
from speedrun_operator.metrics import table
from speedrun_operator.metrics.figures import Figures, LoginFigures, Work
from speedrun_operator.shown import Shown

PATH = "/metrics"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric. A value of None is no sample."""

    metric: table.Metric
    value: float | Counted | None
    labels: tuple[str, ...] = ()


def metrics(figures: Callable[[], Figures], most: int) -> Page:
    """The page. `figures` is asked at each scrape; at most `most` Speedruns get series of their own."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(figures, most))
    ProcessCollector(registry=registry)

    def page(headers: Mapping[str, str]) -> Answer:
        encode, content_type = choose_encoder(headers.get("Accept", ""))
        return Answer(encode(registry), content_type)

    return page


class _Collector(Collector):
    def __init__(self, figures: Callable[[], Figures], most: int) -> None:
        self._figures = figures
        self._most = most

    def collect(self) -> Iterable[Family]:
        return families(samples(self._figures(), self._most))


def samples(figures: Figures, most: int) -> Iterator[Sample]:
    """Everything that a scrape says of the operator and its Speedruns."""
    yield Sample(table.BUILD, 1, (figures.version,))
    yield Sample(table.BEAT_AGE, figures.beat_age)
    yield Sample(table.LAG, figures.lag)
    for key, count in figures.requests.items():
        yield Sample(table.REQUESTS, count, key)
    for api, end in figures.token_ends.items():
        yield Sample(table.TOKEN_END, end.timestamp(), (api,))
    yield Sample(table.CRD_INSTALLED, figures.crd_installed)
    yield Sample(table.CRD_STALE, figures.crd_stale)
    yield from _work(figures.work)
    yield from _counted(figures)
    whole = [*figures.work.live, *figures.work.finished]
    shown = whole[:most]
    yield Sample(table.WITHOUT, _total(figures.work) - len(shown))
    for one in shown:
        queued = one.queued(figures.now)
        yield from _one(one, queued)


def _work(work: Work) -> Iterator[Sample]:
    for key, count in work.polls.items():
        yield Sample(table.POLLS, count, key)
    for key, count in work.submissions.items():
        yield Sample(table.SUBMISSIONS, count, key)
    yield Sample(table.PREPARATIONS, work.preparations)
    yield Sample(table.CANCELLATIONS, work.cancellations)
    yield Sample(table.WATCH, work.watching)
    for login in work.logins:
        yield from _login(login)
    if (storage := work.storage) is not None:
        yield Sample(table.STORAGE_USED, storage.used)
        yield Sample(table.STORAGE_SIZE, storage.size)
        yield Sample(table.STORAGE_FREE, storage.free)


def _login(login: LoginFigures) -> Iterator[Sample]:
    for outcome, count in login.commands.items():
        yield Sample(table.COMMANDS, count, (login.name, outcome))
    for metric, value in (
        (table.LATENCY, login.latency),
        (table.CONNECTED, login.connected),
        (table.CONNECTS, login.connects),
        (table.CONNECT_FAILURES, login.connect_failures),
    ):
        yield Sample(metric, value, (login.name,))


def _counted(figures: Figures) -> Iterator[Sample]:
    """Phases of all namespaces that are watched by name or have a Speedrun: none of one, too, so that it is a fall."""
    counts = Counter(figures.work.finished_counts)
    counts.update((each.identity.namespace, each.phase) for each in figures.work.live)
    for namespace in sorted({*figures.namespaces, *(each for each, _ in counts)}):
        for phase in Phase:
            yield Sample(table.SPEEDRUNS, counts[namespace, phase], (namespace, phase.value))


def _total(work: Work) -> int:
    return len(work.live) + sum(work.finished_counts.values())


def _one(one: Shown, queued: float | None) -> Iterator[Sample]:
    whose = (one.identity.namespace, one.identity.name)
    yield Sample(table.INFO, 1, (*whose, one.recipe, one.backend))
    yield Sample(table.PHASE, 1, (*whose, one.phase.value))
    for metric, value in (
        (table.VAL_LOSS, one.val_loss),
        (table.TARGET, one.target),
        (table.TRAIN_TIME, one.train_seconds),
        (table.PROGRESS, one.progress),
        (table.STEP_TIME, one.step_seconds),
        (table.REMAINING, one.remaining_seconds),
        (table.QUEUE, queued),
        (table.ENDED, one.ended.timestamp() if one.ended else None),
    ):
        yield Sample(metric, value, whose)
    for type_, holds in one.conditions:
        yield Sample(table.CONDITION, holds, (*whose, type_))


def families(found: Iterable[Sample]) -> list[Family]:
    """Samples by their metrics, in the order of the table; a metric without samples is left out."""
    made: dict[str, Family] = {}
    for each in found:
        if each.value is None:
            continue
        family = made.get(each.metric.name)
        if family is None:
            family = made[each.metric.name] = _family(each.metric)
        _add(family, each)
    return [made[metric.name] for metric in table.TABLE if metric.name in made]


def _family(metric: table.Metric) -> Family:
    match metric.kind:
        case "counter":
            return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        case "histogram":
            return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        case "gauge":
            return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


def _add(family: Family, sample: Sample) -> None:
    if isinstance(family, HistogramMetricFamily) and isinstance(sample.value, Counted):
        counted = sample.value
        buckets = [(f"{bound:g}", count) for bound, count in counted.buckets]
        family.add_metric(sample.labels, buckets=[*buckets, ("+Inf", counted.count)], sum_value=counted.total)
    elif isinstance(family, CounterMetricFamily | GaugeMetricFamily) and isinstance(sample.value, int | float):
        family.add_metric(sample.labels, float(sample.value))
    else:
        raise TypeError(f"{sample.metric.name}: {sample.value!r}")
