// SPDX-License-Identifier: BSD-3-Clause
#include "report.h"

#include <algorithm>
#include <map>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace lockstep::bench {

void Report::begin(int ranks) const {
  if (sink_ == nullptr) return;
  const auto more = predicts_ ? prediction_header(format_) : "";
  if (format_ == Format::table) *sink_ << table_header(ranks) << more << std::endl;
  if (format_ == Format::csv) *sink_ << csv_header() << more << std::endl;
}

void Report::add(const Row& row) {
  if (sink_ == nullptr) return;
  const auto more =
      row.predicted ? prediction_columns(*row.predicted, row.microseconds, format_) : std::string();
  if (format_ == Format::table) *sink_ << table_line(row) << more << std::endl;
  if (format_ == Format::csv) *sink_ << csv_line(row) << more << std::endl;
  if (format_ == Format::json) *sink_ << (first_ ? "[" : ",\n ") << json_line(row) << std::flush;
  first_ = false;
}

void Report::finish() {
  if (sink_ != nullptr && format_ == Format::json) *sink_ << (first_ ? "[]" : "]") << std::endl;
}

std::string table_header(int ranks) {
  return fmt::format(
      "# {} ranks; time: median over the calls of the slowest rank, us; p10, p90: percentiles, us; algbw, "
      "busbw: GB/s;\n# wrong: number of wrong elements\n"
      "{:>14} {:>11} {:>10} {:>8} {:>3} {:>7} {:>9} {:>10} {:>10} {:>10} {:>7} {:>7} {:>5}",
      ranks, "collective", "size (B)", "count", "dtype", "op", "backend", "memory", "time", "p10", "p90",
      "algbw", "busbw", "wrong");
}

std::string table_line(const Row& row) {
  return fmt::format(
      "{:>14} {:>11} {:>10} {:>8} {:>3} {:>7} {:>9} {:>10.2f} {:>10.2f} {:>10.2f} {:>7.2f} {:>7.2f} {:>5}",
      row.collective, row.bytes, row.count, row.dtype, row.op, row.backend, row.memory, row.microseconds,
      row.p10, row.p90, row.algbw, row.busbw, row.wrong < 0 ? "n/a" : std::to_string(row.wrong));
}

std::string prediction_header(Format format) {
  if (format == Format::csv) return ",predicted,alpha,beta,gamma";
  return fmt::format(" {:>10} {:>6} {:>10} {:>11} {:>11}", "predicted", "error", "alpha (us)", "beta (ns/B)",
                     "gamma(ns/B)");
}

std::string prediction_columns(const Prediction& predicted, double microseconds, Format format) {
  const auto& model = predicted.model;
  if (format == Format::csv) {
    return fmt::format(",{:.3f},{:.4e},{:.4e},{:.4e}", predicted.microseconds, model.alpha, model.beta,
                       model.gamma);
  }
  const double error = microseconds > 0 ? predicted.microseconds / microseconds - 1 : 0;
  return fmt::format(" {:>10.2f} {:>+5.0f}% {:>10.2f} {:>11.4f} {:>11.4f}", predicted.microseconds,
                     100 * error, model.alpha * 1e6, model.beta * 1e9, model.gamma * 1e9);
}

std::string csv_header() {
  return "collective,bytes,count,dtype,op,backend,memory,ranks,iterations,microseconds,p10,p90,algbw,busbw,"
         "wrong";
}

std::string csv_line(const Row& row) {
  return fmt::format("{},{},{},{},{},{},{},{},{},{:.3f},{:.3f},{:.3f},{:.4f},{:.4f},{}", row.collective,
                     row.bytes, row.count, row.dtype, row.op, row.backend, row.memory, row.ranks,
                     row.iterations, row.microseconds, row.p10, row.p90, row.algbw, row.busbw, row.wrong);
}

std::string json_line(const Row& row) {
  nlohmann::ordered_json line{{"collective", row.collective},
                              {"bytes", row.bytes},
                              {"count", row.count},
                              {"dtype", row.dtype},
                              {"op", row.op},
                              {"backend", row.backend},
                              {"memory", row.memory},
                              {"ranks", row.ranks},
                              {"iterations", row.iterations},
                              {"microseconds", row.microseconds},
                              {"p10", row.p10},
                              {"p90", row.p90},
                              {"algbw", row.algbw},
                              {"busbw", row.busbw},
                              {"wrong", row.wrong}};
  if (row.predicted) {
    const auto& [microseconds, model] = *row.predicted;
    line["predicted"] = microseconds;
    line["model"] = {{"alpha", model.alpha}, {"beta", model.beta}, {"gamma", model.gamma}};
  }
  return line.dump();
}

void predict(std::vector<Row>& rows, const Cluster& cluster) {
  std::map<std::string, std::vector<CostSample>> samples;
  for (const auto& row : rows) {
    samples[row.backend].push_back(
        {.terms = all_reduce_terms(row.backend, row.bytes, cluster), .seconds = row.microseconds / 1e6});
  }
  for (auto& row : rows) {
    const auto model = fit_cost_model(samples.at(row.backend));
    const auto seconds = model.seconds(all_reduce_terms(row.backend, row.bytes, cluster));
    row.predicted = Prediction{.microseconds = seconds * 1e6, .model = model};
  }
}

int iterations_for(std::size_t bytes) {
  constexpr std::size_t kMegabyte = 1UL << 20U;
  if (bytes <= kMegabyte / 16) return 1000;
  if (bytes <= kMegabyte) return 300;
  return bytes <= 16 * kMegabyte ? 60 : 20;
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const auto above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], place - static_cast<double>(below));
}

std::vector<double> slowest(const std::vector<std::vector<double>>& spans) {
  std::vector<double> longest = spans.front();
  for (const auto& one : spans) {
    for (std::size_t call = 0; call < longest.size(); ++call) {
      longest[call] = std::max(longest[call], one.at(call));
    }
  }
  return longest;
}

Row with_times(Row row, const std::vector<double>& seconds, double bus_factor) {
  const double median = quantile(seconds, 0.5);
  row.microseconds = median * 1e6;
  row.p10 = quantile(seconds, 0.1) * 1e6;
  row.p90 = quantile(seconds, 0.9) * 1e6;
  row.algbw = median > 0 ? static_cast<double>(row.bytes) / median / 1e9 : 0;
  row.busbw = row.algbw * bus_factor;
  return row;
}

}  // namespace lockstep::bench
