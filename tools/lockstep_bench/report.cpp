// SPDX-License-Identifier: BSD-3-Clause
#include "report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace lockstep::bench {

std::string table_header() {
  return fmt::format("{:>15} {:>12} {:>12} {:>9} {:>4} {:>7} {:>9} {:>11} {:>11} {:>11} {:>9} {:>9} {:>6}",
                     "collective", "size (B)", "count", "type", "op", "backend", "memory", "time (us)", "p10",
                     "p90", "algbw", "busbw", "wrong");
}

std::string table_line(const Row& row) {
  return fmt::format(
      "{:>15} {:>12} {:>12} {:>9} {:>4} {:>7} {:>9} {:>11.2f} {:>11.2f} {:>11.2f} {:>9.2f} {:>9.2f} {:>6}",
      row.collective, row.bytes, row.count, row.dtype, row.op, row.backend, row.memory, row.microseconds,
      row.p10, row.p90, row.algbw, row.busbw, row.wrong < 0 ? "N/A" : std::to_string(row.wrong));
}

std::string csv_header() {
  return "collective,bytes,count,dtype,op,backend,memory,microseconds,p10,p90,algbw,busbw,wrong";
}

std::string csv_line(const Row& row) {
  return fmt::format("{},{},{},{},{},{},{},{:.3f},{:.3f},{:.3f},{:.4f},{:.4f},{}", row.collective, row.bytes,
                     row.count, row.dtype, row.op, row.backend, row.memory, row.microseconds, row.p10,
                     row.p90, row.algbw, row.busbw, row.wrong);
}

std::string json_text(const std::vector<Row>& rows) {
  auto all = nlohmann::ordered_json::array();
  for (const auto& row : rows) {
    all.push_back({{"collective", row.collective},
                   {"bytes", row.bytes},
                   {"count", row.count},
                   {"dtype", row.dtype},
                   {"op", row.op},
                   {"backend", row.backend},
                   {"memory", row.memory},
                   {"microseconds", row.microseconds},
                   {"p10", row.p10},
                   {"p90", row.p90},
                   {"algbw", row.algbw},
                   {"busbw", row.busbw},
                   {"wrong", row.wrong}});
  }
  return all.dump();
}

}  // namespace lockstep::bench
