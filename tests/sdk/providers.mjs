// The providers' own SDKs behind one shape: `sign` gives the headers that the provider would add, `accepts` asks
// the SDK's verifier. Both take { secret, url, headers, body }, header names in lower case, body as text.
import { createHmac } from 'node:crypto';
import { parse } from 'node:querystring';
import * as octokit from '@octokit/webhooks-methods';
import '@shopify/shopify-api/adapters/node';
import { ApiVersion, shopifyApi } from '@shopify/shopify-api';
import { createSHA256HMAC, HashFormat } from '@shopify/shopify-api/runtime';
import bolt from '@slack/bolt';
import { AccessToken, WebhookReceiver } from 'livekit-server-sdk';
import { Webhook } from 'standardwebhooks';
import Stripe from 'stripe';
import { Webhook as SvixWebhook } from 'svix';
import twilio from 'twilio';

// LiveKit's name for its secret, as in docs/custom-source.md.
const LIVEKIT_KEY = 'APIcustomsource';

const now = () => Math.floor(Date.now() / 1000);
const isForm = (headers) => (headers['content-type'] ?? '').startsWith('application/x-www-form-urlencoded');

// An SDK's verifier either answers, or throws what it found wrong.
const throwsNot = async (check) => {
  await check();
  return true;
};

const stripe = {
  sign: ({ secret, body }) => ({
    'stripe-signature': Stripe.webhooks.generateTestHeaderString({ payload: body, secret }),
  }),
  accepts: ({ secret, headers, body }) =>
    throwsNot(() => Stripe.webhooks.constructEvent(body, headers['stripe-signature'], secret)),
};

const github = {
  sign: async ({ secret, body }) => ({ 'x-hub-signature-256': await octokit.sign(secret, body) }),
  accepts: ({ secret, headers, body }) => octokit.verify(secret, body, headers['x-hub-signature-256']),
};

const shopify = {
  sign: async ({ secret, body }) => ({
    'x-shopify-hmac-sha256': await createSHA256HMAC(secret, body, HashFormat.Base64),
  }),
  accepts: async ({ secret, headers, body }) => {
    const api = shopifyApi({
      apiKey: 'key',
      apiSecretKey: secret,
      apiVersion: Object.values(ApiVersion).at(-1),
      hostName: 'hooks.example.com',
      isEmbeddedApp: false,
      logger: { log: () => {} },
    });
    const rawRequest = { method: 'POST', url: '/', headers };
    const result = await api.webhooks.validate({ rawBody: body, rawRequest, rawResponse: {} });
    if (!result.valid) throw new Error([result.reason, ...(result.missingHeaders ?? [])].join(' '));
    return true;
  },
};

const standardWebhooks = {
  sign: ({ secret, body }) => {
    const [id, date] = ['msg_2b8fa3c1', new Date()];
    const signature = new Webhook(secret).sign(id, date, body);
    const timestamp = `${Math.floor(date.getTime() / 1000)}`;
    return { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signature };
  },
  accepts: ({ secret, headers, body }) => throwsNot(() => new Webhook(secret).verify(body, headers)),
};

// The headers of senders that use Svix, such as Clerk and Resend.
const svix = {
  sign: ({ secret, body }) => {
    const [id, date] = ['msg_2b8fa3c1', new Date()];
    const signature = new SvixWebhook(secret).sign(id, date, body);
    const timestamp = `${Math.floor(date.getTime() / 1000)}`;
    return { 'svix-id': id, 'svix-timestamp': timestamp, 'svix-signature': signature };
  },
  accepts: ({ secret, headers, body }) => throwsNot(() => new SvixWebhook(secret).verify(body, headers)),
};

// The SDK has no signer: this is the documented scheme, and sign.mjs asks the SDK's verifier about it.
const slack = {
  sign: ({ secret, body }) => {
    const timestamp = now();
    const signature = createHmac('sha256', secret).update(`v0:${timestamp}:${body}`).digest('hex');
    return { 'x-slack-request-timestamp': `${timestamp}`, 'x-slack-signature': `v0=${signature}` };
  },
  accepts: ({ secret, headers, body }) =>
    throwsNot(() => bolt.verifySlackRequest({ signingSecret: secret, headers, body })),
};

const twilioForms = {
  sign: ({ secret, url, body }) => ({
    'x-twilio-signature': twilio.getExpectedTwilioSignature(secret, url, parse(body)),
  }),
  accepts: async ({ secret, url, headers, body }) => {
    const signature = headers['x-twilio-signature'];
    return isForm(headers)
      ? twilio.validateRequest(secret, signature, url, parse(body))
      : twilio.validateRequestWithBody(secret, signature, url, body);
  },
};

const livekit = {
  sign: async ({ secret, body }) => {
    const token = new AccessToken(LIVEKIT_KEY, secret, { ttl: 300 });
    const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(body));
    token.sha256 = Buffer.from(digest).toString('base64');
    return { authorization: await token.toJwt() };
  },
  accepts: ({ secret, headers, body }) =>
    throwsNot(() => new WebhookReceiver(LIVEKIT_KEY, secret).receive(body, headers.authorization)),
};

const all = { stripe, github, shopify, standard_webhooks: standardWebhooks, resend: svix, slack, twilio: twilioForms, livekit };

export function provider(name) {
  if (!Object.hasOwn(all, name)) throw new Error(`there is no SDK for ${name}`);
  return all[name];
}

// Whether the verifier accepts the request, and why not where it says so.
export async function verdict(name, request) {
  try {
    return (await provider(name).accepts(request)) ? 'accepted' : 'refused';
  } catch (error) {
    return `refused: ${error.message}`;
  }
}

// The request with one byte of its body changed: the last letter or digit.
export function changed(request) {
  const at = request.body.search(/[A-Za-z0-9][^A-Za-z0-9]*$/);
  const other = request.body[at] === '1' ? '2' : '1';
  return { ...request, body: request.body.slice(0, at) + other + request.body.slice(at + 1) };
}
