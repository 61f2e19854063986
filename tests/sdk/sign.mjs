// Signs one request with a provider's SDK.
// usage: sign.mjs PROVIDER <REQUEST     a request is the JSON { secret, url, headers, body }
// Prints the request with the headers that sign it. What the SDK's own verifier refuses is not printed.
import { text } from 'node:stream/consumers';
import { provider, verdict } from './providers.mjs';

const name = process.argv[2];
const request = JSON.parse(await text(process.stdin));
const headers = { ...request.headers, ...(await provider(name).sign(request)) };
const signed = { ...request, headers };
const answer = await verdict(name, signed);
if (answer !== 'accepted') throw new Error(`${name}: what was signed here is ${answer}`);
console.log(JSON.stringify(signed));
