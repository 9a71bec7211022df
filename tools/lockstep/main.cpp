// SPDX-License-Identifier: BSD-3-Clause
#include "commands.h"

int main(int argc, char** argv) { return lockstep::cli::run({argv + 1, argv + argc}); }
