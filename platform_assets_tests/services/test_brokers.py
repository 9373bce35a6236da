"""One broker or three: the home keeps its choice, and the brokers start, stop and come back."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import ConfigResource

from platform_assets.services import brokers, platform, ports, state
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.brokers import Brokers
from platform_assets.services.errors import ConfigurationError
from platform_assets.services.home import Home
from platform_assets.services.platform import UpOptions
from platform_assets.services.ports import LOOPBACK
from platform_assets.services.process import ProcessRecord, start_of
from platform_assets_tests.support import services
from platform_assets_tests.support.shell import Shell
from platform_assets_tests.support.trio import Trio
from testbed.homes import home_at, service_environment
from testbed.loads import wait_until

SETTINGS = BrokerSettings()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a home in which nothing runs."""
    made = home_at(tmp_path / "a home")
    made.prepare()
    return made


def formatted_for(home: Home, *names: str) -> None:
    """Create the storage of these brokers as Kafka's format tool would create it."""
    for name in names:
        (home.root / name).mkdir()
        (home.root / name / "meta.properties").write_text("version=1\ncluster.id=the-cluster\n")


def running_here(home: Home, service: str, *ports: int) -> None:
    """Record this test's own process in the run state as a broker."""
    address = f"127.0.0.1:{ports[0]}"
    record = ProcessRecord(service, os.getpid(), start_of(os.getpid()) or "", "m", "log", address, ports, ready=True)
    state.write_record(home, record)


# --- how many there are ---------------------------------------------------------------------------------------------


def test_a_new_home_gets_one_broker_unless_three_are_asked_for(home: Home) -> None:
    assert brokers.of_home(home, None) == brokers.of_home(home, 1) == ("kafka",)
    assert brokers.of_home(home, 3) == ("kafka", "kafka-2", "kafka-3")


def test_a_home_of_one_refuses_three_and_each_remedy_that_it_names_helps(home: Home, tmp_path: Path) -> None:
    formatted_for(home, "kafka")
    with pytest.raises(ConfigurationError, match=r"--brokers 3: .* formatted for 1") as caught:
        platform.up(home, UpOptions(broker=BrokerSettings(brokers=3)), environ=service_environment())
    assert "Omit --brokers" in str(caught.value)
    assert brokers.of_home(home, None) == ("kafka",)
    assert "set PLATFORM_HOME to another folder" in str(caught.value)
    assert len(brokers.of_home(home_at(tmp_path / "another"), 3)) == 3
    assert state.read_records(home) == {}


@pytest.mark.parametrize("there", [("kafka-3",), ("kafka-3", "kafka-2"), ("kafka", "kafka-3"), brokers.ALL])
def test_a_home_of_three_stays_one_also_where_formatting_was_cut_short_or_a_disk_was_lost(
    home: Home, there: tuple[str, ...]
) -> None:
    formatted_for(home, *there)
    assert brokers.of_home(home, None) == brokers.ALL
    assert brokers.cluster_id(home) == "the-cluster"
    with pytest.raises(ConfigurationError, match=r"--brokers 1: .* formatted for 3"):
        brokers.of_home(home, 1)


def test_a_broker_that_the_home_has_not_is_named_with_the_way_to_have_it(home: Home) -> None:
    formatted_for(home, "kafka")
    with pytest.raises(ConfigurationError, match=r"kafka-2: .* has one broker, .*`platform-assets up --brokers 3`"):
        platform.start_service("kafka-2", home, environ=service_environment())


def test_one_of_three_alone_is_refused_before_it_waits_for_a_quorum(home: Home) -> None:
    formatted_for(home, *brokers.ALL)
    with pytest.raises(ConfigurationError, match=r"kafka-2 cannot start alone.*`platform-assets up --service kafka`"):
        platform.start_service("kafka-2", home, environ=service_environment())
    Brokers(home, SETTINGS, {}, ("kafka-2", "kafka-3"))
    running_here(home, "kafka-3", 9, 10)
    Brokers(home, SETTINGS, {}, ("kafka-2",))


# --- addresses and ports --------------------------------------------------------------------------------------------


def test_clients_are_told_all_three_also_while_one_is_gone(home: Home) -> None:
    formatted_for(home, *brokers.ALL)
    for at, service in enumerate(brokers.ALL):
        state.remember_ports(home, service, (40_001 + at, 40_011 + at))
    assert "KAFKA_BOOTSTRAP_SERVERS" not in platform.environment(home, environ={})
    running_here(home, "kafka-2", 40_002, 40_012)
    every = "127.0.0.1:40001,127.0.0.1:40002,127.0.0.1:40003"
    assert platform.environment(home, environ={})["KAFKA_BOOTSTRAP_SERVERS"] == every
    # The addresses that `platform-assets env` prints do not replace the brokers; another address replaces all of them,
    # and is shown once.
    assert platform.given(home, environ={"KAFKA_BOOTSTRAP_SERVERS": every}) == frozenset()
    foreign = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:40001"}
    assert platform.given(home, environ=foreign) == {*brokers.ALL}
    shown = {s.service: s.status for s in platform.running_state(home, environ=foreign)}
    assert {name: status for name, status in shown.items() if name.startswith("kafka")} == {"kafka": "given"}
    shown = {s.service: s.status for s in platform.running_state(home, environ={})}
    assert [shown[s] for s in brokers.ALL] == ["stopped", "running", "stopped"]


def test_ports_that_are_asked_for_are_had_and_two_that_are_one_are_named() -> None:
    first, second, third = ports.choose_each([ports.PortWish()] * 3, environ={})
    wishes = [ports.PortWish(first, "A"), ports.PortWish(second, "B"), ports.PortWish(third)]
    assert ports.choose_each(wishes, environ={}) == (first, second, third)
    # A port requested for a later broker is not assigned to an earlier one that remembers it.
    swapped = ports.choose_each(wishes, environ={"B": str(first)})
    assert swapped[1] == first
    assert len({*swapped}) == 3
    with pytest.raises(ConfigurationError, match=f"A and B are both {first}"):
        ports.choose_each(wishes, environ={"A": str(first), "B": str(first)})


def test_a_controller_keeps_the_port_that_the_others_know_it_by(home: Home) -> None:
    formatted_for(home, *brokers.ALL)
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        for at, service in enumerate(brokers.ALL):
            state.remember_ports(home, service, (40_001 + at, taken if service == "kafka-2" else 40_011 + at))
        running_here(home, "kafka", 40_001, 40_011)
        members = Brokers(home, SETTINGS, service_environment(), ("kafka-2", "kafka-3"))
        with pytest.raises(ConfigurationError, match=rf"kafka-2 must listen on port {taken}, .*platform-assets down"):
            members.spec("kafka-2")
        # The remedy in the message: if no broker runs, another port is used.
        state.remove_record(home, "kafka")
        members = Brokers(home, SETTINGS, service_environment(), brokers.ALL)
        assert members._ports({})["kafka-2"][1] != taken


def test_a_home_of_three_starts_again_as_what_it_was_formatted_for(home: Home) -> None:
    def started() -> tuple[list[str], list[tuple[int, ...]]]:
        members = Brokers(home, SETTINGS, service_environment(), brokers.of_home(home, None))
        found = [members.spec(service) for service in brokers.ALL]
        return [(home.run / f"{spec.name}.properties").read_text() for spec in found], [spec.ports for spec in found]

    # Brokers that are formatted are not formatted again: Kafka's tool would refuse to.
    formatted_for(home, *brokers.ALL)
    properties, chosen = started()
    voters = ",".join(f"{node}@{LOOPBACK}:{ports[1]}" for node, ports in enumerate(chosen, 1))
    for node, text in enumerate(properties, 1):
        assert f"node.id={node}\n" in text
        assert f"controller.quorum.voters={voters}\n" in text
    assert started() == (properties, chosen)
    assert brokers.cluster_id(home) == "the-cluster"


# --- three real brokers ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return a shell in which a command has started three brokers."""
    made = Shell(tmp_path_factory.mktemp("three"))
    own = made.root / "home"
    made.variables |= {"PLATFORM_JARS": str(home_at(own).jars), "KAFKA_HEAP": "384m"}
    try:
        done = made.run("up", "--service", "kafka", "--brokers", "3")
        assert done.exit_code == 0, done.output
        yield made
    finally:
        platform.down(home_at(own))
    assert services.naming(own) == []
    # After a kill, Kafka would scan all logs again.
    killed = [s for s in brokers.ALL if not (own / s / ".kafka_cleanshutdown").is_file()]
    assert killed == [], "these brokers did not end in good order"


@pytest.fixture
def trio(shell: Shell) -> Trio:
    """Return the three brokers that the command in the shell has started."""
    return Trio(home_at(shell.root / "home"))


@pytest.mark.long
@pytest.mark.broker
def test_three_brokers_of_one_cluster_copy_everything_over_three_racks(trio: Trio, shell: Shell) -> None:
    found = re.findall(r"KAFKA_BOOTSTRAP_SERVERS=(\S+)", shell.run("env").output)
    assert found == [f"'{trio.bootstrap}'"] or found == [trio.bootstrap]
    assert len(trio.bootstrap.split(",")) == 3
    admin = trio.admin()
    cluster = admin.describe_cluster().result(30)
    assert cluster.cluster_id == brokers.cluster_id(trio.home)
    assert {(n.id, n.rack) for n in cluster.nodes} == {(1, "r1"), (2, "r2"), (3, "r3")}
    assert ",".join(f"{n.host}:{n.port}" for n in sorted(cluster.nodes, key=lambda n: n.id)) == trio.bootstrap
    trio.create("copied")
    (partition,) = admin.describe_topics(TopicCollection(["copied"]))["copied"].result(30).partitions
    assert {node.id for node in partition.replicas} == {1, 2, 3}
    resource = ConfigResource(ConfigResource.Type.TOPIC, "copied")
    assert admin.describe_configs([resource])[resource].result(30)["min.insync.replicas"].value == "2"


@pytest.mark.long
@pytest.mark.broker
def test_one_that_died_is_shown_and_up_without_the_option_brings_it_back(trio: Trio, shell: Shell) -> None:
    trio.create("lives-on")
    wait_until("all are in sync", lambda: trio.in_sync("lives-on") == {1, 2, 3})
    before = {n: trio.record(n) for n in (1, 2, 3)}
    trio.kill(2)
    shown = {s.service: s.status for s in platform.running_state(trio.home, environ={})}
    assert [shown[s] for s in brokers.ALL] == ["running", "dead", "running"]
    said = shell.run("up", "--service", "kafka")
    assert said.exit_code == 0, said.output
    assert "kafka: already running" in said.output
    assert "kafka-2: ready" in said.output
    after = {n: trio.record(n) for n in (1, 2, 3)}
    assert [after[n].pid == before[n].pid for n in (1, 2, 3)] == [True, False, True]
    assert after[2].ports == before[2].ports
    wait_until("it has caught up", lambda: trio.in_sync("lives-on") == {1, 2, 3})


@pytest.mark.long
@pytest.mark.broker
def test_one_is_restarted_in_good_order_while_the_others_serve(trio: Trio) -> None:
    before = {n: trio.record(n) for n in (1, 2, 3)}
    platform.restart("kafka-2", trio.home, report=lambda _: None, environ=service_environment())
    assert [trio.record(n).pid == before[n].pid for n in (1, 2, 3)] == [True, False, True]
    assert trio.record(2).address == before[2].address


@pytest.mark.long
@pytest.mark.broker
def test_the_last_of_three_ends_in_good_order_with_nobody_left_to_ask(trio: Trio, shell: Shell) -> None:
    """Even if all three brokers end at the same time, a broker can be the last one, if the other two are faster."""
    trio.kill(2, 3)
    said = shell.run("down")
    assert said.exit_code == 0, said.output
    assert (trio.home.root / "kafka" / ".kafka_cleanshutdown").is_file()
    trio.up()


@pytest.mark.long
@pytest.mark.broker
def test_down_ends_all_in_good_order_and_up_finds_what_they_kept(trio: Trio, shell: Shell) -> None:
    trio.create("kept")
    cluster = brokers.cluster_id(trio.home)
    said = shell.run("down")
    assert said.exit_code == 0, said.output
    # After a kill, Kafka would scan all logs again.
    assert [(trio.home.root / s / ".kafka_cleanshutdown").is_file() for s in brokers.ALL] == [True] * 3
    refused = shell.run("up", "--service", "kafka", "--brokers", "1")
    assert (refused.exit_code, "--brokers 1" in refused.output) == (1, True), refused.output
    said = shell.run("up", "--service", "kafka")
    assert said.exit_code == 0, said.output
    assert brokers.cluster_id(trio.home) == cluster
    wait_until("the topic is led", lambda: trio.in_sync("kept") == {1, 2, 3})
