// SPDX-License-Identifier: BSD-3-Clause
#include <ostream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/mesh_ranks.h"

namespace lockstep {

std::string runtime::joined_shape(const DeviceMesh& mesh) {
  const auto names = mesh.mesh_dim_names();
  const auto shape = mesh.shape();
  std::vector<std::string> words;
  for (std::size_t i = 0; i < shape.size(); ++i)
    words.push_back(names.empty() ? fmt::format("{}", shape[i]) : fmt::format("{}={}", names[i], shape[i]));
  return fmt::format("{}", fmt::join(words, ", "));
}

std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh) {
  out << fmt::format("DeviceMesh({}), rank {}", runtime::joined_shape(mesh), mesh.get_rank());
  const auto coordinate = mesh.get_coordinate();
  if (!coordinate) return out << " is not in it\n";
  out << fmt::format(" at ({})\n", fmt::join(*coordinate, ", "));
  auto names = mesh.mesh_dim_names();
  for (auto i = names.size(); i < coordinate->size(); ++i) names.push_back(fmt::format("dim {}", i));
  const auto ranks = mesh.mesh();
  const auto columns = ranks.size(-1);
  const auto last = names.back();
  names.pop_back();
  for (const auto& name : names) out << fmt::format("{:>6} ", name);
  out << fmt::format("| {:>6}", last);
  for (std::int64_t i = 0; i < columns; ++i) out << fmt::format(" {:>5}", i);
  out << '\n';
  const auto rows = ranks.reshape({-1, columns});
  auto shape = mesh.shape();
  shape.pop_back();
  for (std::int64_t row = 0; row < rows.size(0); ++row) {
    auto block = rows.size(0), rest = row;
    for (const auto size : shape) {
      block /= size;
      out << fmt::format("{:>6} ", rest / block);
      rest %= block;
    }
    out << fmt::format("| {:>6}", "");
    for (const auto rank : runtime::to_vector(rows[row]))
      out << fmt::format(" {:>5}", fmt::format("{}{}", rank, rank == mesh.get_rank() ? "*" : ""));
    out << '\n';
  }
  return out;
}

}  // namespace lockstep
