/*
 * What the daemon without a model returns from the methods that only look, as text for pack().
 */
#ifndef HOLDFAST_TESTS_FAKE_RESULTS_H
#define HOLDFAST_TESTS_FAKE_RESULTS_H

#include "clients/wire.h"

#define SESS "#000102030405060708090a0b0c0d0e0f#"
#define SESSION "{'sess': " SESS ", 'state': 'idle', 'principal': 'uid:1', 'turn': 3, " \
	"'epoch': 1, 'history': 1234, 'resident': 1200, 'bytes': 14438400, " \
	"'residency': 'leased', 'idle_ms': 61000, 'label': 'build'}"
#define COLUMNS(n) "{'free': " n ", 'running': 0, 'promised': 1048576, 'retained': 0, " \
	"'shared': 0, 'moving': 0, 'doomed': 0}"
static const char *const results[METHOD_COUNT] = {
	[METHOD_SESSION_OPEN] = "{'granted': {'kind': 'leased', 'bytes': 1048576, "
		"'lease_ms': 60000}, 'history': 42}",
	[METHOD_SESSION_FORK] = "{'granted': {'kind': 'best_effort', 'bytes': 0, 'lease_ms': 0}, "
		"'history': 42}",
	[METHOD_SESSION_ROLLBACK] = "{'history': 10, 'resident': 10}",
	[METHOD_SESSION_LIST] = "[" SESSION ", " SESSION "]",
	[METHOD_SESSION_SHOW] = "{'sess': " SESS ", 'state': 'queued', 'principal': 'uid:1', "
		"'turn': 3, 'epoch': 1, 'history': 1234, 'resident': 1200, 'bytes': 14438400, "
		"'residency': 'leased', 'idle_ms': 61000, 'label': 'build', 'waiting': {"
		"'why': 'pages', 'place': 2, 'short_by': 4096}}",
	[METHOD_LEDGER_SHOW] = "{'accounts': {'device': " COLUMNS("104857600") ", 'host': "
		COLUMNS("0") "}, 'principals': [{'principal': 'uid:1', 'sessions': 2, 'turns': 0, "
		"'bytes': 14438400}]}",
	[METHOD_PAGES_SHOW] = "[{'page': 7, 'group': 0, 'state': 'retained', 'tag': 99, "
		"'owners': 1, 'position': 64, 'sess': " SESS "}]",
	[METHOD_MODEL_SHOW] = "{'name': 'fake', 'architecture': 'none', 'layers': 1}",
	[METHOD_HEALTH] = "{'state': 'serving', 'uptime_ms': 5, 'loop_turns': 1, "
		"'turns_running': 0, 'turns_waiting': 0, 'sessions': 2, 'tokens_sampled': 0, "
		"'version': '0', 'boot': " SESS "}",
	/* Nothing that is an event. */
	[METHOD_EVENTS_REPLAY] = "{'events': ['none', {'principal': 'uid:1', 'seq': 0}]}",
	[METHOD_SESSION_ATTACH] = "{'history': 42}",
	[METHOD_SESSION_RESIDENCY] = "{'granted': {'kind': 'pinned', 'bytes': 1, 'lease_ms': 0}}",
	[METHOD_SESSION_CLOSE] = "{}", [METHOD_SESSION_FORGET] = "{}",
	[METHOD_SESSION_HINT] = "{}", [METHOD_SESSION_PARK] = "{}",
	[METHOD_SESSION_EXPORT] = "{'template': 'none', 'label': '', 'turn': 0, 'waits': false, "
		"'course': ##}",
	[METHOD_SESSION_IMPORT] = "{'granted': {'kind': 'best_effort', 'bytes': 0, 'lease_ms': 0}, "
		"'history': 42}",
	[METHOD_DETOKENIZE] = "{'text': #68c3a900ff#}",
};

#endif
