"""Options for Java that runs for seconds: half of its compiler, and the collector that starts fastest."""

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
