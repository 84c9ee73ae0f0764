import { fileURLToPath } from 'node:url';

const scrollbars = fileURLToPath(new URL('src/scrollbars.js', import.meta.url));

export default {
  resolve: { alias: [{ find: /^react-custom-scrollbars-2$/, replacement: scrollbars }] },
  build: { chunkSizeWarningLimit: 10_000 },
};
