// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/rendezvous/init.h>

#include "kinds.h"
#include "measure.h"
#include "memory_limit.h"
#include "options.h"
#include "report.h"

namespace lockstep::bench {

// One rank of `lockstep bench`.
class Bench {
 public:
  // All ranks construct it with the same options. `cores`: number of cores that the ranks of this host may
  // use.
  Bench(const Options& options, const Context& context, int cores);

  // Measures; rank 0 prints.
  void run();

 private:
  std::vector<BenchCase> cases(const Kind& kind, const std::string& dtype, std::int64_t count) const;
  void measure(const Kind& kind, const std::string& dtype, std::size_t bytes);
  bool supports_memory(const std::string& backend, const std::string& memory) const;
  void log_on_main(const std::string& text) const;

  const Options& options_;
  const Context& context_;
  Sync sync_;  // over the context's group, which is not measured
  std::map<std::string, ProcessGroup> groups_;
  std::optional<MemoryLimit> memory_limit_;
  Report report_;
};

}  // namespace lockstep::bench
