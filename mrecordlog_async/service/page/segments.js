// Segments are deleted oldest first: each cell shows how many queues have records in a segment, the sentence who keeps the oldest.
const CELLS = 300;
function showSegments(stats) {
  const { first, last, live } = stats.segments, queuesIn = new Map(live);
  $("segment-text").textContent = `(${count(last - first + 1, "segment")} on disk, ${bytes(stats.usage.disk_bytes)})`;
  const size = Math.ceil((last - first + 1) / CELLS), cells = [];
  for (let segment = first; segment <= last; segment += size) {
    let most = 0;
    for (let one = segment; one < segment + size; one += 1) most = Math.max(most, queuesIn.get(one) || 0);
    const name = size > 1 ? `segments ${segment}–${Math.min(segment + size - 1, last)}` : `segment ${segment}`;
    const holds = most ? `records of ${count(most, "queue")}` : segment + size > last ? "being written" : "no records";
    cells.push({ kind: most > 1 ? "several" : most === 1 ? "one" : segment + size > last ? "" : "none", title: `${name}: ${holds}` });
  }
  fill($("segments"), cells);
  $("pins").textContent = sentence(stats);
  $("segments").setAttribute("aria-label", $("pins").textContent);
}
function sentence(stats) {
  const { first, last, live } = stats.segments, pin = stats.pin;
  if (!live.length) return "No records are retained.";
  if (!pin) return "Only the current segment is needed.";
  const some = (from, number) => number === 1 ? `segment ${from}` : `segments ${from}–${from + number - 1}`;
  if (pin.alone > 0) return `${pin.queue} alone keeps ${some(last - pin.segments, pin.alone)}: truncate or delete it to free the space.`;
  const keepers = (live[0] || [0, 0])[1];
  return `${count(keepers, "queue")} (${pin.queue} is one of them) keep ${some(first, pin.segments)}. Sort the queues by “keeps from segment” to see them.`;
}
