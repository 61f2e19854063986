// Receives requests on a loopback port, and asks a provider's SDK about each.
// usage: verify.mjs PROVIDER SECRET URL     URL is what the sender believes to send to
// Prints the port, then a line of JSON for each POST: { as_sent, changed }, each `accepted` or `refused`, where
// `changed` is the same request with one byte of its body changed. Ends with its standard input.
import { createServer } from 'node:http';
import { text } from 'node:stream/consumers';
import { changed, verdict } from './providers.mjs';

const [name, secret, url] = process.argv.slice(2);

async function judge(incoming) {
  const body = await text(incoming);
  const query = incoming.url.includes('?') ? incoming.url.slice(incoming.url.indexOf('?')) : '';
  const request = { secret, url: url + query, headers: incoming.headers, body };
  const [asSent, other] = [await verdict(name, request), await verdict(name, changed(request))];
  console.log(JSON.stringify({ as_sent: asSent, changed: other }));
}

const server = createServer(async (incoming, answer) => {
  if (incoming.method === 'POST') await judge(incoming);
  answer.end();
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
process.stdin.on('end', () => process.exit(0)).resume();
