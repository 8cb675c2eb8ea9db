"""From verify events to the store: sources and the one ingest pipeline behind them."""
