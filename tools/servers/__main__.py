"""Run Kafka, Redis and PostgreSQL in the foreground until Ctrl-C or SIGTERM.

Prints the shell lines that point the software at them: ``python -m tools.servers`` in one terminal, the lines
in another.
"""

import argparse
import json
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import FrameType

from tools.servers import KafkaServer, PostgresServer, RedisServer, Server, ServerFailed, ServerUnavailable


def main() -> int:
    """Start, print, wait, stop."""
    parser = argparse.ArgumentParser(prog="python -m tools.servers", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the variables as one JSON line")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    kafka, cache, database = KafkaServer(), RedisServer(persist=True), PostgresServer()
    servers: list[Server] = [kafka, cache, database]
    try:
        with ExitStack() as stack:
            for server in servers:
                stack.callback(server.close)
            with ThreadPoolExecutor(len(servers)) as starters:
                for started in [starters.submit(server.start) for server in servers]:
                    started.result()
            variables = {
                "DSPARK_KAFKA_BOOTSTRAP": kafka.bootstrap,
                "DSPARK_REDIS_URL": cache.url,
                "DSPARK_DATABASE_URL": database.url,
            }
            if options.json:
                print(json.dumps(variables), flush=True)
            else:
                for name, value in variables.items():
                    print(f"export {name}={value}", flush=True)
                print("# Ctrl-C stops them and removes their data", file=sys.stderr, flush=True)
            while all(server.running for server in servers):
                time.sleep(0.5)
            ended = next(server for server in servers if not server.running)
            print(f"{ended.kind} has ended:\n{ended.log_tail()}", file=sys.stderr)
            return 1
    except (ServerUnavailable, ServerFailed) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
