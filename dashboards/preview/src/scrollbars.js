// The scrollbars of Grafana's tables are a CommonJS module, which the bundler hands over as a whole.
import { Scrollbars } from 'react-custom-scrollbars-2/lib/index.js';

export default Scrollbars;
