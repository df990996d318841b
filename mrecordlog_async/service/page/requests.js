// Requests with the token, and the box that asks for it.
const $ = (id) => document.getElementById(id);
const base = location.pathname.replace(/[^/]*$/, "");
const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const TOKEN = "mrecordlog-token";
let token = sessionStorage.getItem(TOKEN) || "", tokenWaiters = [];
$("links").hidden = Boolean(token);  // a link sends no token

async function call(path, options = {}) {
  const sent = token, headers = { ...options.headers };
  if (sent) headers.Authorization = "Bearer " + String.fromCharCode(...new TextEncoder().encode(sent));  // a header holds bytes
  const response = await fetch(base + path, { ...options, headers, cache: "no-store" });
  if (response.status !== 401) return response;
  if (token === sent) await askForToken();
  return call(path, options);
}
function askForToken() {
  $("token-box").hidden = false;
  $("token-note").textContent = token ? "The service does not accept this token. Compare it with the service's token file." : "";
  setState("token needed", "");
  return new Promise((resolve) => tokenWaiters.push(resolve));
}
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem(TOKEN, token);
  $("token-box").hidden = $("links").hidden = true;
  $("token").value = "";
  for (const resume of tokenWaiters.splice(0)) resume();
});
async function problem(response) {
  try { return (await response.json()).detail || String(response.status); } catch { return String(response.status); }
}

// Server-sent events, read with fetch: EventSource cannot send a token.
async function* events(path, options = {}) {
  const response = await call(path, options);
  if (!response.ok) throw new Error(await problem(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n");
      const of = (name) => lines.filter((line) => line.startsWith(name + ": ")).map((line) => line.slice(name.length + 2)).join("\n");
      if (of("data")) yield { event: of("event") || "message", data: of("data") };
    }
  }
}
