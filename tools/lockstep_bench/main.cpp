// SPDX-License-Identifier: BSD-3-Clause
// One rank of `lockstep bench`.
#include <iostream>

#include <ATen/Parallel.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/rendezvous/init.h>

#include "base/host.h"
#include "bench.h"
#include "options.h"
#include "rank_sync.h"

namespace lockstep::bench {
namespace {

void run(const Options& options) {
  at::set_num_threads(1);
  const auto context = init();
  const int cores = usable_cores();
  if (options.bind) bind_to_core(context.local_rank());
  Bench(options, context, cores).run();
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    bench::run(bench::parse_options(bench::Tool::lockstep_bench, {argv + 1, argv + argc}));
    return 0;
  } catch (const bench::HelpWanted& help) {
    std::cout << help.text << std::flush;
    return 0;
  } catch (const ArgumentError& error) {
    log(LogLevel::error, error.what());
    return 2;
  } catch (const std::exception& error) {
    log(LogLevel::error, error.what());
    return 1;
  }
}
