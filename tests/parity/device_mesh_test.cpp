// SPDX-License-Identifier: BSD-3-Clause
// DeviceMesh beside PyTorch's, on every rank of drawn shapes; its errors; its groups at work.
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>

#include "support/error_of.h"
#include "support/python.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Names = std::vector<std::string>;

constexpr int kWorldSize = 12;

Context fake_rank(int rank, int world_size) {
  return init({.backend = "fake", .world_size = world_size, .rank = rank});
}

std::vector<int> global_ranks(const ProcessGroup& group) {
  std::vector<int> ranks;
  for (int i = 0; i < group.size(); ++i) ranks.push_back(group.global_rank(i));
  return ranks;
}

std::vector<int> numbers(const at::Tensor& tensor) {
  const auto flat = tensor.to(torch::kInt).contiguous();
  return {flat.data_ptr<int>(), flat.data_ptr<int>() + flat.numel()};
}

// The shape and, for some, the ranks of a mesh: "2,3" or "2,3 5,0,7,1,2,3".
std::string draw_mesh(int number) {
  torch::manual_seed(static_cast<std::uint64_t>(number));
  std::vector<std::int64_t> shape;
  std::int64_t left = kWorldSize;
  const auto ndim = 1 + number % 4;
  for (int i = 0; i < ndim; ++i) {
    shape.push_back(torch::randint(1, std::min<std::int64_t>(left, 4) + 1, {}).item<std::int64_t>());
    left /= shape.back();
  }
  auto text = fmt::format("{}", fmt::join(shape, ","));
  if (number % 3 == 0) {
    const auto count = torch::tensor(shape).prod().item<std::int64_t>();
    text += fmt::format(" {}", fmt::join(numbers(torch::randperm(kWorldSize).slice(0, 0, count)), ","));
  }
  return text;
}

std::vector<std::int64_t> parse(const std::string& list) {
  std::vector<std::int64_t> values;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) values.push_back(std::stoi(word));
  return values;
}

std::string description(const DeviceMesh& mesh) {
  std::vector<std::string> groups;
  std::vector<int> local;
  for (int dim = 0; dim < mesh.ndim(); ++dim) {
    groups.push_back(fmt::format("{}", fmt::join(global_ranks(mesh.get_all_groups()[dim]), " ")));
    local.push_back(mesh.get_local_rank(dim));
  }
  return fmt::format("{} | {} | {} | {} | {} | {} | {} {}", fmt::join(mesh.mesh_dim_names(), " "),
                     fmt::join(mesh.shape(), " "), fmt::join(numbers(mesh.mesh()), " "),
                     fmt::join(mesh.get_coordinate().value(), " "), fmt::join(local, " "),
                     fmt::join(groups, "; "), mesh.size(), mesh.ndim());
}

Names subset(const Names& names, unsigned bits) {
  Names chosen;
  for (std::size_t i = 0; i < names.size(); ++i)
    if ((bits >> i & 1U) != 0) chosen.push_back(names[i]);
  return chosen;
}

// Non-empty subsets of the names in the order of itertools.combinations.
std::vector<Names> parts_of(const Names& names) {
  std::vector<Names> parts;
  for (unsigned bits = 1; bits < 1U << names.size(); ++bits) parts.push_back(subset(names, bits));
  const auto place = [&](const std::string& name) { return std::ranges::find(names, name) - names.begin(); };
  std::ranges::sort(parts, [&](const Names& a, const Names& b) {
    if (a.size() != b.size()) return a.size() < b.size();
    return std::ranges::lexicographical_compare(a, b, {}, place, place);
  });
  return parts;
}

// What device_mesh.py prints.
std::string on_rank(const std::string& text, int rank, int world_size) {
  const auto context = fake_rank(rank, world_size);
  const auto space = text.find(' ');
  const auto shape = parse(text.substr(0, space));
  const Names all{"dp", "pp", "cp", "tp"};
  const Names names(all.begin(), all.begin() + std::ssize(shape));
  const auto mesh =
      space == std::string::npos
          ? init_device_mesh(shape, {.mesh_dim_names = names})
          : DeviceMesh(torch::tensor(parse(text.substr(space))).view(shape), {.mesh_dim_names = names});
  auto out = fmt::format("mesh {} rank {}\n", text, rank);
  if (!mesh.get_coordinate()) return out + "outside\n";
  const auto add = [&](const char* label, const DeviceMesh& part) {
    out += fmt::format("{}: {}\n", label, description(part));
  };
  add("whole", mesh);
  for (const auto& part : parts_of(names)) {
    const auto joined = fmt::format("{}", fmt::join(part, "_"));
    add("slice", mesh[part]);
    add("flat", mesh[part].flatten());
    add("named", part == names ? mesh : mesh[joined]);
    if (part.back() != names.back()) add("mixed", mesh[{joined, names.back()}]);
    if (part != names) {
      EXPECT_EQ(global_ranks(mesh.get_group(joined)), global_ranks(mesh[joined].get_group()));
    }
  }
  const auto groups = mesh.get_all_groups();
  add("group", DeviceMesh::from_group(groups[0], std::nullopt, {"only"}));
  add("groups", DeviceMesh::from_group(groups, mesh.mesh(), names));
  for (int dim = 0; dim < mesh.ndim(); ++dim) {
    const auto size = mesh.size(dim);
    if (size % 2 != 0) continue;
    const auto split = mesh.unflatten(dim, {2, size / 2}, {"left", "right"});
    add("split", split);
    add("left", split["left"]);
    add("right", split["right"]);
    const auto of_split = split.mesh_dim_names();
    add("joined", split[Names(of_split.begin() + dim, of_split.end())].flatten(fmt::format("joined{}", dim)));
    const auto slice = mesh[Names(names.begin() + dim, names.end())].unflatten(
        names[static_cast<std::size_t>(dim)], {size / 2, 2}, {"outer", "inner"});
    add("split slice", slice);
    add("inner", slice["inner"]);
  }
  return out;
}

TEST(DeviceMeshParity, RanksOfAllGroupsAndCoordinates) {
  std::vector<std::string> meshes;
  for (int number = 0; number < 16; ++number) meshes.push_back(draw_mesh(number));
  meshes.insert(meshes.end(), {"12", "3,4", "1,12", "2,3,2", "12 11,10,9,8,7,6,5,4,3,2,1,0"});
  std::string ours;
  for (const auto& mesh : meshes)
    for (int rank = 0; rank < kWorldSize; ++rank) ours += on_rank(mesh, rank, kWorldSize);
  auto args = meshes;
  args.insert(args.begin(), std::to_string(kWorldSize));
  std::istringstream found(ours), expected(run_python("parity/device_mesh.py", {.args = args}));
  std::string mesh, line;
  for (std::string theirs; std::getline(expected, theirs);) {
    ASSERT_TRUE(std::getline(found, line)) << theirs;
    if (line.starts_with("mesh")) mesh = line;
    if (theirs.ends_with(": not in this release")) continue;
    ASSERT_EQ(line, theirs) << mesh;
  }
  EXPECT_FALSE(std::getline(found, line)) << line;
}

TEST(DeviceMesh, ErrorsNameTheDimensions) {
  EXPECT_THAT(error_of([] { init_device_mesh({2}); }), HasSubstr("call lockstep::init() first"));
  const auto context = fake_rank(0, 8);
  const auto refuses = [](const std::function<void()>& action, const std::string& what) {
    EXPECT_THAT(error_of<ArgumentError>(action), HasSubstr(what));
  };
  refuses([] { init_device_mesh({2, 5}); }, "a mesh of [2, 5] has 10 ranks; the default group has only 8");
  refuses([] { init_device_mesh({2, 0}); }, "mesh_shape (2, 0)");
  refuses([] { init_device_mesh({2, 2}, {.mesh_dim_names = {"dp"}}); }, "1 mesh_dim_names (dp) for 2 dim");
  refuses([] { init_device_mesh({2, 2}, {.mesh_dim_names = {"dp", "dp"}}); }, "(dp, dp) must be different");
  refuses([] { DeviceMesh(torch::tensor({1, 1})); }, "the ranks 1, 1; they must be distinct");
  refuses([] { DeviceMesh(torch::tensor({8})); }, "the ranks 8; they must be distinct, in 0 to 7");
  refuses([] { DeviceMesh(torch::tensor({0.5})); }, "must hold the ranks as integers");
  refuses([] { init_device_mesh({2}, {.backend_override = {{"dp", "fake"}}}); }, "is for dimension \"dp\"");
  refuses([] { init_device_mesh({2}, {.backend_override = {{1, "fake"}}}); }, "is for dimension 1");
  refuses(
      [] {
        init_device_mesh({2}, {.mesh_dim_names = {"dp"}, .backend_override = {{0, "fake"}, {"dp", "fake"}}});
      },
      "two entries for dimension \"dp\"");
  const auto mesh = init_device_mesh({2, 2, 2}, {.mesh_dim_names = {"dp", "cp", "tp"}});
  const auto plain = init_device_mesh({2, 2});
  refuses([&] { plain["dp"]; }, "needs a mesh with mesh_dim_names");
  refuses([&] { plain.flatten(); }, "needs a mesh with mesh_dim_names");
  refuses([&] { mesh["pp"]; }, "no dimension \"pp\"; it has (dp, cp, tp)");
  refuses([&] { mesh[{"tp", "dp"}]; }, "reorders the dimensions");
  refuses([&] { mesh[Names{}]; }, "at least one name");
  refuses([&] { mesh.get_group(); }, "get_group() without mesh_dim is for meshes of one dimension");
  refuses([&] { mesh.get_local_rank(); }, "get_local_rank() without mesh_dim");
  refuses([&] { mesh.get_group(3); }, "no dimension 3; it has dimensions 0 to 2");
  mesh[{"dp", "cp"}].flatten("both");
  refuses([&] { mesh[{"cp", "tp"}].flatten("both"); }, "has a dimension \"both\" of other ranks");
  refuses([&] { mesh[{"cp", "tp"}].flatten("dp"); }, "has a dimension \"dp\" of other ranks");
  refuses([&] { mesh[{"dp", "both"}]; }, "overlap");
  refuses([&] { mesh["tp"]["both"]; }, "it has (tp)");
  const DeviceMesh others(torch::tensor({{2, 3}, {4, 5}}), {.mesh_dim_names = {"dp", "tp"}});
  EXPECT_EQ(others.get_coordinate(), std::nullopt);
  EXPECT_TRUE(others.get_all_groups().empty());
  refuses([&] { others.get_group("dp"); }, "rank 0 is not in the mesh");
  refuses([&] { others["dp"].mesh(); }, "rank 0 is in none of the 2 parts");
  refuses([&] { plain.unflatten(0, {1, 2}, {"a", "b"}); }, "unflatten() needs a mesh with mesh_dim_names");
  refuses([&] { mesh.unflatten("pp", {2}, {"a"}); }, "no dimension \"pp\"");
  refuses([&] { mesh.unflatten("both", {2, 2}, {"a", "b"}); }, "\"both\" is made by flatten()");
  refuses([&] { mesh.unflatten("dp", {2, 2}, {"a", "b"}); }, "mesh_sizes (2, 2)");
  refuses([&] { mesh.unflatten("dp", {1, 2}, {"a"}); }, "mesh_dim_names (a) for a dimension of 2 ranks");
  refuses([&] { mesh.unflatten("dp", {1, 2}, {"a", "tp"}); }, "must be different");
  refuses([&] { mesh.unflatten("dp", {1, 2}, {"a", "both"}); }, "must be different");
  EXPECT_EQ(mesh.unflatten("dp", {1, 2}, {"a", "dp"})["both"].size(), 4);
  refuses([] { DeviceMesh::from_group(std::vector<ProcessGroup>{}, torch::arange(2), {"a"}); },
          "0 groups for");
  const auto all = mesh.get_all_groups();
  refuses([&] { DeviceMesh::from_group(all[0], torch::arange(2)); }, "which has the ranks 0, 4");
  refuses(
      [&] {
        DeviceMesh::from_group({all[0], all[1]}, torch::arange(4).view({2, 2}), {"a", "b"});
      },
      "has the ranks 0, 4, but dimension 0 of the mesh has 0, 2 there");
  refuses(
      [&] {
        DeviceMesh::from_group(std::vector{all[0]}, torch::tensor({1, 5}), {"a"});
      },
      "rank 0 is not in the mesh");
}

TEST(DeviceMesh, PrintsATable) {
  const auto context = fake_rank(5, 8);
  std::ostringstream out;
  out << init_device_mesh({2, 2, 2}, {.mesh_dim_names = {"dp", "cp", "tp"}}) << init_device_mesh({8});
  EXPECT_EQ(out.str(),
            "DeviceMesh(dp=2, cp=2, tp=2), rank 5 at (1, 0, 1)\n"
            "    dp     cp |     tp     0     1\n"
            "     0      0 |            0     1\n"
            "     0      1 |            2     3\n"
            "     1      0 |            4    5*\n"
            "     1      1 |            6     7\n"
            "DeviceMesh(8), rank 5 at (5)\n"
            "|  dim 0     0     1     2     3     4     5     6     7\n"
            "|            0     1     2     3     4    5*     6     7\n");
}

const Scenario mesh_at_work("device mesh at work", [] {
  const auto context = init({.backend = "shm"});
  const auto mesh =
      init_device_mesh({2, 2}, {.mesh_dim_names = {"dp", "tp"}, .backend_override = {{"dp", "gloo"}}});
  EXPECT_EQ(mesh.get_group("dp").backend_name(), "gloo");
  EXPECT_EQ(mesh.get_group("tp").backend_name(), "shm");
  const auto sum_over = [&](const ProcessGroup& group) {
    const auto sum = torch::tensor(context.rank());
    group.all_reduce(sum);
    return sum.item<int>();
  };
  const auto row = context.rank() / 2, column = context.rank() % 2;
  EXPECT_EQ(sum_over(mesh.get_group("dp")), 2 + 2 * column);
  EXPECT_EQ(sum_over(mesh["tp"].get_group()), 1 + 4 * row);
  EXPECT_EQ(sum_over(mesh.flatten().get_group()), 6);
  // Ranks 0 and 3 are not in it and make its groups all the same.
  const DeviceMesh part(torch::tensor({{2}, {1}}), {.mesh_dim_names = {"dp", "tp"}});
  const auto flat = part.flatten();
  if (part.get_coordinate()) {
    EXPECT_EQ(sum_over(flat.get_group()), 3);
  }
  EXPECT_EQ(sum_over(init_device_mesh({2, 2}).get_group(1)), 1 + 4 * row);
  const auto split = init_device_mesh({4}, {.mesh_dim_names = {"all"}}).unflatten(0, {2, 2}, {"dp", "tp"});
  EXPECT_EQ(sum_over(split["dp"].get_group()), 2 + 2 * column);
  EXPECT_EQ(sum_over(DeviceMesh::from_group(split.get_group("tp")).get_group()), 1 + 4 * row);
});
TEST(DeviceMesh, ItsGroupsReduceOverTheirRanks) {
  expect_all_passed(run_ranks(mesh_at_work, {.world_size = 4}));
}

}  // namespace
}  // namespace lockstep::testing
