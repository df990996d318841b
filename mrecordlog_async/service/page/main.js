// The stream of numbers, one event per second; it is restarted whenever it ends.
async function follow() {
  for (;;) {
    try {
      for await (const { data } of events("v1/stats/stream")) await onStats(parse(data));
    } catch { /* shown below */ }
    setUnreachable();
    before = null;
    await sleep(1000);
  }
}
async function onStats(stats) {
  const now = performance.now();
  showState(stats, now);
  if (stats.state === "recovering") return;
  showSegments(stats);
  await showQueues(now, stats.usage.queues);
  if (!addressSeen) openAddress();
  await refreshQueue(now);
  await refreshAllConsumers(now);
}
follow();
