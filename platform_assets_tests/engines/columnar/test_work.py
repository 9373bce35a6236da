"""The work that is sent to tasks contains no secrets. Workers have the secrets themselves, or report which secret is
missing."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from platform_assets.engines.columnar.work import Piece, Share, Source, Work
from platform_assets.engines.shared import worker
from platform_assets.engines.shared.reports import UnsupportedError
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.offsets import OffsetRange

CANARY = "canary-4711"
SECURE = {
    "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "KAFKA_SASL_MECHANISM": "PLAIN",
    "KAFKA_SASL_USERNAME": "somebody",
    "KAFKA_SASL_PASSWORD": CANARY,
}


def work(*options: str) -> Work:
    share = Share("w", "w/load", (Piece(0, OffsetRange(0, 1)),), Source("t", "A" * 22, "/lake/raw/t"))
    return Work("broker:9092", options, (share,), 100, 30.0, 8 << 20)


def test_a_worker_takes_the_settings_from_its_own_environment_and_the_brokers_from_the_driver() -> None:
    driver = ClientSettings.from_environment(SECURE, "broker:9092")
    sent = pickle.loads(pickle.dumps(work(*driver.options)))
    assert sent.settings({**SECURE, "KAFKA_BOOTSTRAP_SERVERS": "elsewhere:1", "HOME": "/"}) == driver
    # Workers do not use a variable that the driver does not have.
    assert work().settings(SECURE) == ClientSettings("broker:9092")
    consent = {**SECURE, "PLATFORM_ALLOW_CLEARTEXT_LOGINS": "true"}
    assert [sent.settings(given).cleartext_logins for given in (SECURE, consent)] == [False, True]


@pytest.mark.parametrize("job", ["columnar", "decoding", "merging"])
def test_the_name_of_the_code_follows_from_all_that_a_worker_imports(job: str) -> None:
    """If the name of the code did not depend on all of these modules, workers that Spark kept could run code that
    differs from the driver's code."""
    program = (
        f"import sys; from platform_assets.engines.{job} import task; "
        "print(*(m for m, v in sys.modules.items() if m.startswith('platform_assets.') and not hasattr(v, '__path__')))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert {module.rpartition(".")[0] for module in said.split()} <= set(worker._folders())


def test_nothing_that_is_sent_out_holds_a_value_of_a_setting() -> None:
    driver = ClientSettings.from_environment(SECURE, "broker:9092")
    sent = work(*driver.options)
    assert CANARY.encode() not in pickle.dumps(sent)
    assert CANARY not in repr(sent)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "KAFKA_SASL_PASSWORD"),
        ({k: v for k, v in SECURE.items() if k != "KAFKA_SASL_USERNAME"}, "KAFKA_SASL_USERNAME"),
        ({**SECURE, "KAFKA_SASL_LOGIN_CALLBACK": "x"}, "KAFKA_SASL_LOGIN_CALLBACK"),
    ],
)
def test_a_worker_that_lacks_a_setting_says_which_and_no_value(environment: dict[str, str], named: str) -> None:
    driver = ClientSettings.from_environment(SECURE, "broker:9092")
    with pytest.raises(UnsupportedError, match=named) as unsupported:
        work(*driver.options).settings(environment)
    assert CANARY not in str(unsupported.value)
