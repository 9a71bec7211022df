// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <iostream>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "checkpoint_file.h"
#include "commands.h"
#include "leaves.h"
#include "progress.h"

namespace lockstep::ckpt {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLongestValue = 200;

struct Totals {
  std::size_t entries = 0;
  std::size_t tensors = 0;
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
};

Totals totals_of(const std::vector<Leaf>& leaves) {
  Totals totals{.entries = leaves.size(), .bytes = total_bytes(leaves)};
  for (const auto& leaf : leaves) {
    if (const auto* tensor = leaf.tensor()) {
      ++totals.tensors;
      totals.elements += tensor->numel();
    }
  }
  return totals;
}

Json row(const Leaf& leaf) {
  Json row = {{"key", leaf.path}, {"type", leaf.value->type_name()}};
  if (const auto* tensor = leaf.tensor()) {
    row["dtype"] = dtype_name(tensor->scalar_type());
    row["shape"] = tensor->sizes().vec();
    row["bytes"] = bytes_of(*tensor);
  } else {
    row["value"] = repr(*leaf.value);
  }
  return row;
}

std::string json_text(const Checkpoint& checkpoint, const std::vector<Leaf>& leaves) {
  const auto totals = totals_of(leaves);
  Json entries = Json::array();
  for (const auto& leaf : leaves) entries.push_back(row(leaf));
  const Json document = {{"file", checkpoint.file.string()}, {"metadata", checkpoint.metadata},
                         {"entries", std::move(entries)},    {"tensors", totals.tensors},
                         {"elements", totals.elements},      {"bytes", totals.bytes}};
  // What is no UTF-8 must not be an error here.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string table_text(const Checkpoint& checkpoint, const std::vector<Leaf>& leaves) {
  constexpr std::size_t widest_key = 60;
  std::size_t width = 3;
  for (const auto& leaf : leaves) width = std::max(width, std::min(widest_key, printable(leaf.path).size()));
  auto text = fmt::format("{:<{}}  {:<10}  {:<14}  {:<18}  {:>10}\n", "KEY", width, "TYPE", "DTYPE", "SHAPE",
                          "BYTES");
  for (const auto& leaf : leaves) {
    text += fmt::format("{:<{}}  {:<10}  ", printable(leaf.path), width, leaf.value->type_name());
    if (const auto* tensor = leaf.tensor()) {
      text += fmt::format("{:<14}  {:<18}  {:>10}\n", dtype_name(tensor->scalar_type()), shape_text(*tensor),
                          bytes_of(*tensor));
    } else {
      text += repr(*leaf.value, kLongestValue) + "\n";
    }
  }
  for (const auto& [key, value] : checkpoint.metadata) {
    text += fmt::format("metadata {}: {}\n", printable(key), printable(value));
  }
  const auto totals = totals_of(leaves);
  return text + fmt::format("{} entries, {} tensors of {} elements, {}\n", totals.entries, totals.tensors,
                            totals.elements, bytes_text(totals.bytes));
}

}  // namespace

Command add_show_command(CLI::App& app) {
  struct Options {
    std::string file;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  auto* command =
      app.add_subcommand("show", "List the entries of a checkpoint with types, dtypes and shapes");
  command->add_option("file", options->file, "Checkpoint: a file or a distributed checkpoint's folder")
      ->required();
  command->add_flag("--json", options->json, "Print JSON");
  return {command, [options] {
            const auto checkpoint = read_checkpoint(options->file, {.map_location = at::kMeta});
            const auto leaves = leaves_of(checkpoint.value);
            const auto text = options->json ? json_text : table_text;
            std::cout << text(checkpoint, leaves) << std::flush;
            return 0;
          }};
}

}  // namespace lockstep::ckpt
