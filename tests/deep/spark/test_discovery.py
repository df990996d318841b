"""What Spark finds when it searches an environment: the data source, and never an error."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.spark.services import ThreadedService, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


USE = """
import pyspark_mrecordlog as found
from pyspark.sql.datasource import DataSource
assert issubclass(found.DefaultSource, DataSource)
print(found.DefaultSource.name())
try:
    found.DefaultSource({"servers": "http://127.0.0.1:1"})
except RuntimeError as error:
    print(error)
"""


def test_the_data_source_is_found_under_its_name() -> None:
    """Spark registers the class `DefaultSource` of every module named pyspark_*."""
    assert python(USE) == "mrecordlog\n"


@pytest.mark.parametrize("missing", ["DataSourceArrowWriter", "DataSourceStreamReader"])
def test_an_older_spark_keeps_its_other_data_sources(missing: str) -> None:
    """With a Spark that is too old, only users of `mrecordlog` get an error, and it says what is missing."""
    hide = f"import pyspark.sql.datasource as known; del known.{missing}\n"
    name, told = python(hide + USE).splitlines()
    assert name == "mrecordlog"
    assert missing in told
    assert "mrecordlog_async[spark]" in told


@pytest.mark.parametrize("hidden", ["pyspark", "pyspark.sql.datasource"])
def test_a_spark_without_data_sources_imports_the_module(hidden: str) -> None:
    """With a Spark that has no data sources, the module imports and defines none."""
    assert (
        python(f"import sys; sys.modules[{hidden!r}] = None\nimport pyspark_mrecordlog as m\nprint(dir(m))").find(
            "'DefaultSource'"
        )
        == -1
    )


def test_looking_for_data_sources_loads_nothing_of_this_package() -> None:
    """Every user of Spark in the environment pays for the discovery, so it imports the package only when it is used."""
    assert python("import sys, pyspark_mrecordlog\nprint('mrecordlog_async' in sys.modules)") == "False\n"


def test_a_data_source_of_another_project_is_found_too(spark: SparkSession, service: ThreadedService) -> None:
    """Spark discovers both in one environment, without registration, and reads both."""
    service.append("q", numbered("q", 0, 5))
    ours = spark.read.format("mrecordlog").option("servers", service.url).load()
    assert (spark.read.format("neighbour").load().count(), ours.count()) == (3, 5)


def test_an_error_in_the_package_disables_nothing_else() -> None:
    """A broken installation of this package does not disable other data sources."""
    told = python(
        "import sys, types\n"
        "class Broken(types.ModuleType):\n"
        "    def __getattr__(self, name): raise ValueError('broken')\n"
        "sys.modules['mrecordlog_async.spark.data_source'] = Broken('source')\n" + USE
    )
    assert "ValueError: broken" in told
