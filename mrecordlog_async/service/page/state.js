// The state of the service and its totals: the part above the queues.
const SECONDS = 120, NEARLY_FULL = 0.85;
let before = null, beforeAt = 0, serviceName = "";
const rates = [], latencies = [];

function setState(state, note) {
  if ($("state").textContent !== state) $("state").textContent = state;  // a screen reader would say it each second
  $("state").className = "pill " + state.replaceAll(" ", "-");
  $("note").textContent = note;
  document.body.classList.toggle("warned", state === "open" && note !== "");
  document.body.classList.toggle("stale", state === "unreachable" || state === "token needed");
}
function setUnreachable() {
  if ($("state").textContent === "unreachable") return;
  const since = new Date().toLocaleTimeString();
  setState("unreachable", `since ${since}; the last numbers are shown in grey; trying again every second`);
}
function showState(stats, now) {
  setState(stats.state, noteOf(stats));
  if (stats.name !== serviceName) {
    serviceName = stats.name;
    $("service").textContent = shownName(serviceName) || "mrecordlog";
    showTitle();
  }
  const up = stats.uptime_seconds ? `, up for ${age(stats.uptime_seconds)}` : "";
  $("about").textContent = `mrecordlog at ${location.host} · version ${stats.version}${stats.policy ? ", policy " + stats.policy : ""}${up}`;
  $("recovery").hidden = stats.state !== "recovering";
  $("recovery-text").textContent = Math.round(stats.fraction * 100) + " %";
  $("recovery-bar").style.width = stats.fraction * 100 + "%";
  $("failure").hidden = !stats.failure;
  $("failure").textContent = stats.failure
    ? `The log has failed: ${stats.failure}. Check the disk and what the process logged, then restart the process. mrecordlog serve ends by itself after --failure-grace, so that its supervisor restarts it.` : "";
  if (stats.state === "recovering") return;
  if (before && now > beforeAt) showRates(stats, (now - beforeAt) / 1000);
  before = stats;
  beforeAt = now;
  showTotals(stats);
}
function noteOf(stats) {
  if (stats.under_way_seconds > 1) return `the disk has not finished a commit for ${time(stats.under_way_seconds)}`;
  if (stats.waiting_seconds > 1) return `the oldest append has waited for ${time(stats.waiting_seconds)}`;
  if (stats.damaged.segment) return `${count(stats.damaged.segment, "read")} met damaged records on the disk: see the log of the process, and run mrecordlog verify`;
  const { disk_bytes: disk, disk_limit_bytes: most, memory_bytes: memory, memory_limit_bytes: memoryMost } = stats.usage;
  if (disk >= NEARLY_FULL * most) return `${Math.floor(disk / most * 100)} % of the disk limit is used${holder()}`;
  if (stats.beyond_memory === "refuse" && memory >= NEARLY_FULL * memoryMost) return `${Math.floor(memory / memoryMost * 100)} % of the memory limit is used${holder()}`;
  if (stats.workers.failed) return `workers of the application that failed and do not run any more: ${stats.workers.failed}`;
  if (stats.workers.restarting) return `workers of the application that failed and are about to be started again: ${stats.workers.restarting}`;
  return "";
}
function showRates(stats, seconds) {
  const change = (name) => Math.max(stats.counters[name] - before.counters[name], 0) / seconds;
  const stored = change("appended_records");
  $("records-rate").textContent = rate(stored);
  $("bytes-rate").textContent = bytes(change("appended_bytes")) + "/s";
  $("commits-rate").textContent = rate(change("commits"));
  push(rates, stored, SECONDS);
  $("throughput-top").textContent = rate(draw($("throughput"), rates, SECONDS, 40));
  $("throughput").setAttribute("aria-label", `now ${rate(stored)}, at most ${rate(Math.max(...rates))} in the last two minutes`);
  const syncs = stats.sync_seconds.count - before.sync_seconds.count;
  const mean = syncs > 0 ? (stats.sync_seconds.sum - before.sync_seconds.sum) / syncs : null;
  push(latencies, mean, SECONDS);
  $("sync-text").textContent = mean === null ? "" : "· now " + time(mean);
  $("latency").setAttribute("aria-label", mean === null ? "no sync in the last second" : `now ${time(mean)}`);
  const empty = Array.from({ length: SECONDS - latencies.length }, () => null);
  fill($("latency"), [...empty, ...latencies].map((value) => value === null
    ? { title: "no sync" } : { colour: heat(value), title: time(value) }));
}
$("throughput").addEventListener("mousemove", (event) => {
  const box = $("throughput").getBoundingClientRect();
  const ago = Math.round((1 - (event.clientX - box.left) / box.width) * (SECONDS - 1)), value = rates[rates.length - 1 - ago];
  $("throughput-text").textContent = value === undefined ? "" : `· ${ago} s ago ${rate(value)}`;
});
$("throughput").addEventListener("mouseleave", () => { $("throughput-text").textContent = ""; });

function showTotals(stats) {
  $("records-total").textContent = `${short(stats.counters.appended_records)} since it was opened`;
  $("bytes-total").textContent = `${bytes(stats.counters.appended_bytes)} since it was opened`;
  $("commits-total").textContent = `${short(stats.counters.commits)} since it was opened`;
  const times = (stats.last_minute || stats).commit_seconds;
  // null: above the last bound of the histogram.
  $("commit-p50").textContent = !times.count ? "–" : times.p50 === null ? "> 52 s" : time(times.p50);
  $("commit-p99").textContent = times.count ? `1 % take longer than ${times.p99 === null ? "52 s" : time(times.p99)}` : "";
  const usage = stats.usage;
  showUse("memory", usage.memory_bytes, usage.memory_limit_bytes);
  if (stats.beyond_memory === "disk") {  // memory is full by design
    if (usage.disk_only_bytes) $("memory-text").textContent += `; ${bytes(usage.disk_only_bytes)} on the disk only`;
    $("memory-bar").className = "";
  }
  showUse("disk", usage.disk_bytes, usage.disk_limit_bytes);
  showUse("pending", usage.pending_bytes, usage.pending_limit_bytes);
  showRefused(stats);
}
function showUse(name, used, limit) {
  const fraction = Math.min(used / limit, 1), bar = $(name + "-bar");
  $(name + "-text").textContent = bytes(used) + " of " + bytes(limit);
  bar.style.width = fraction * 100 + "%";
  bar.className = fraction >= 0.95 ? "hot" : fraction >= 0.8 ? "warm" : "";
}
function showRefused(stats) {
  const refused = Object.entries(stats.refused).filter(([, appends]) => appends).map(([reason, appends]) => `${reason} ${appends}`);
  const parts = [`appends refused: ${refused.join(", ") || "none"}`, `requests: ${stats.requests}`];
  for (const [status, responses] of Object.entries(stats.problems)) parts.push(`responses ${status}: ${responses}`);
  parts.push(`streams and long polls: ${stats.tails}`, `slow readers dropped: ${stats.dropped_readers}`);
  $("refused").replaceChildren(...parts.map((text) => Object.assign(document.createElement("span"), { textContent: text })));
}
