// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cost_model.h"

namespace lockstep::bench {

enum class Format { table, csv, json };

// What a cost model predicts that was fitted to the rows of the same backend.
struct Prediction {
  double microseconds = 0;
  CostModel model{};
};

// One line of the table.
struct Row {
  std::string collective = {};
  std::size_t bytes = 0;
  std::int64_t count = 0;  // elements
  std::string dtype = {};
  std::string op = {};
  std::string backend = {};
  std::string memory = {};
  int ranks = 0;
  int iterations = 0;
  double microseconds = 0;  // median
  double p10 = 0;           // microseconds that a tenth of the calls stayed below
  double p90 = 0;
  double algbw = 0;  // GB/s
  double busbw = 0;
  std::int64_t wrong = -1;  // elements; -1: not checked
  std::optional<Prediction> predicted = {};
};

// Prints rows as they come; JSON, one array, is closed by finish().
class Report {
 public:
  // `sink` is what rank 0 has; the others print nothing and give none. `predicts`: all rows have a
  // prediction.
  explicit Report(Format format, std::ostream* sink, bool predicts = false)
      : format_(format), sink_(sink), predicts_(predicts) {}

  void begin(int ranks) const;
  void add(const Row& row);
  void finish();

 private:
  Format format_;
  std::ostream* sink_;
  bool predicts_;
  bool first_ = true;
};

std::string table_header(int ranks);
std::string table_line(const Row& row);
// Further columns of rows with a prediction.
std::string prediction_header(Format format);
std::string prediction_columns(const Prediction& predicted, double microseconds, Format format);
std::string csv_header();
std::string csv_line(const Row& row);
// A JSON object.
std::string json_line(const Row& row);

// Fits a model to the rows of each backend, and adds its predictions.
void predict(std::vector<Row>& rows, const Cluster& cluster);

// Timed calls for a row of `bytes`: fewer of the long ones.
int iterations_for(std::size_t bytes);

// The value below which `share` of the values lie; linear between neighbours.
double quantile(std::vector<double> values, double share);

// The longest of the ranks' spans, call by call; [rank][call], as many calls on each rank.
std::vector<double> slowest(const std::vector<std::vector<double>>& spans);

// `row`, whose bytes are set, with the times and bandwidths that follow from `seconds`, one a call.
Row with_times(Row row, const std::vector<double>& seconds, double bus_factor);

}  // namespace lockstep::bench
