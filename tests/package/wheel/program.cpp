// SPDX-License-Identifier: BSD-3-Clause
int run();

int main() { return run(); }
