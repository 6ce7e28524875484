// The last module: everything is declared, the page begins.

import { start } from "./shell.js";

start();
