"""Carbon's own reader of lines, on a port of its own: says what it took and what it did not, one line of JSON each."""

import json
import sys

from twisted.internet import reactor

from carbon import events, instrumentation, log, state
from carbon.protocols import CarbonReceiverFactory, MetricLineReceiver


def say(what):
    print(json.dumps(what), flush=True)


# Carbon says of a line that it cannot read that it is invalid, here and nowhere else.
log.listener = lambda text: say({"invalid": text}) if "invalid" in text else None
events.metricReceived.addHandler(
    lambda name, point: say({"name": name, "secs": point[0], "value": point[1]})
)
state.instrumentation = instrumentation
factory = CarbonReceiverFactory()
factory.protocol = MetricLineReceiver
listening = reactor.listenTCP(int(sys.argv[1]), factory, interface="127.0.0.1")
say({"port": listening.getHost().port})
reactor.run()
