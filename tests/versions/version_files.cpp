// SPDX-License-Identifier: BSD-3-Clause
// Writes files of every kind that later versions must load, or reads those that an earlier version wrote:
//   version_files write FOLDER    FOLDER is new
//   version_files read FOLDER
//   version_files both FOLDER     replaces FOLDER
// A kind that the earlier version did not write is left out. Never change the name or contents of a kind: to write
// more, add one.
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "versions/trained_states.h"

namespace lockstep::versions {
namespace {

namespace fs = std::filesystem;
namespace dcp = distributed_checkpoint;

Dict plain_values() {
  const auto whole = numbers(12).reshape({3, 4});
  return {{"none", Value()},
          {"flag", true},
          {"number", std::int64_t{1} << 40},
          {"real", 0.1},
          {"text", "wärm-up"},
          {"tuple", Tuple{1, "a"}},
          {"half", numbers(5, at::kHalf)},
          {"bfloat16", numbers(5, at::kBFloat16)},
          {"long", numbers(5, at::kLong)},
          {"bool", numbers(2, at::kBool)},
          {"complex", numbers(3, at::kComplexFloat)},
          {"empty", torch::zeros({0, 3})},
          {"whole", whole},
          {"column", whole.select(1, 2)},
          {"transposed", whole.t()}};
}

void write_run(const fs::path& path) {
  Run run;
  run.make_steps(kStepsBefore);
  save(run.state().state_dict(), path);
}

void read_run(const fs::path& path) {
  Run run;
  run.state().load_state_dict(load(path).as_dict());
  require_continued(run);
}

void write_epoch(const fs::path& path) {
  torch::nn::Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.5));
  torch::nn::init::constant_(net->weight, 0.25);
  save(make_epoch_checkpoint({.epoch = 3, .arch = "mlp", .best_acc = 0.5}, net, optimizer), path);
}

void read_epoch(const fs::path& path) {
  torch::nn::Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  const auto found = load_epoch_checkpoint(load(path).as_dict(), net, optimizer, "mlp");
  require(found.epoch == 3 && found.best_acc == 0.5, "the progress");
  require(net->weight.eq(0.25).all().item<bool>(), "the weight");
  require(optimizer.param_groups()[0].options().get_lr() == 0.5, "the learning rate");
}

CheckpointManagerOptions manager_options(CheckpointWriting writing) {
  return {.sync = false, .writing = writing};
}

void write_checkpoints(const fs::path& folder, CheckpointWriting writing) {
  Run run;
  CheckpointManager manager(folder, manager_options(writing));
  manager.save(1, run.state().state_dict(), 0.1);
  run.make_steps(kStepsBefore);
  manager.save(2, run.state().state_dict(), 0.9);
}

void read_checkpoints(const fs::path& folder, CheckpointWriting writing) {
  CheckpointManager manager(folder, manager_options(writing));
  const auto best = manager.load_best();
  require(best && best->info.step == 2 && best->info.metric == 0.9, "the best checkpoint");
  const auto latest = manager.load_latest();
  require(latest && latest->info.step == 2, "the latest checkpoint");
  Run run;
  run.state().load_state_dict(latest->contents.as_dict());
  require_continued(run);
}

void write_distributed(const fs::path& folder) {
  const ShardedTensor rows{
      .size = {4, 3},
      .local_shards = {{.tensor = numbers(6).reshape({2, 3}), .shard_offsets = {0, 0}},
                       {.tensor = numbers(6).reshape({2, 3}) + 6, .shard_offsets = {2, 0}}}};
  const Dict nested{{"list", List{1, "two"}}, {"weight", numbers(5)}};
  dcp::save({{"rows", rows}, {"nested", nested}}, folder, {.sync = false});
}

void read_distributed(const fs::path& folder) {
  const dcp::Reader reader(folder);
  reader.verify();
  require(reader.read("rows").as_tensor().equal(numbers(12).reshape({4, 3})), "the sharded tensor");
  const auto all = reader.read_all();
  require(all.at("nested")["list"].as_items()[1].as_string() == "two", "the list");
  require(all.at("nested")["weight"].as_tensor().equal(numbers(5)), "the weight");
}

void write_safetensors(const fs::path& path) {
  safetensors::save_file({{"a", numbers(5)}, {"b", numbers(3, at::kHalf)}}, path);
}

void read_safetensors(const fs::path& path) {
  const auto found = safetensors::load_file(path);
  require(found.at("a").as_tensor().equal(numbers(5)), "a");
  require(found.at("b").as_tensor().equal(numbers(3, at::kHalf)), "b");
}

// A data set in `folder`, which keeps its index there.
data::DatasetFolder open_folder(const fs::path& folder) {
  return data::DatasetFolder(
      folder / "classes",
      [](const fs::path& path) { return numbers(static_cast<std::int64_t>(fs::file_size(path))); },
      {.extensions = {{".bin"}}, .index_cache = folder / "index"});
}

void write_folder(const fs::path& folder) {
  const auto old =
      fs::file_time_type::clock::now() - std::chrono::hours(1);  // an index of new folders is not kept
  for (const auto* file : {"ant/a.bin", "ant/b.bin", "bee/c.bin"}) {
    const auto path = folder / "classes" / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << file;
  }
  for (const auto* changed : {"classes/ant", "classes/bee", "classes"})
    fs::last_write_time(folder / changed, old);
  require(open_folder(folder).size() == 3 && fs::exists(folder / "index"), "the index");
}

void read_folder(const fs::path& folder) {
  const auto dataset = open_folder(folder);
  require(dataset.targets().equal(torch::tensor({0, 0, 1})), "the targets");
  require(dataset.classes() == std::vector<std::string>{"ant", "bee"}, "the classes");
}

struct Kind {
  std::string name;
  std::function<void(const fs::path& path)> write;
  std::function<void(const fs::path& path)> read;
};

Kind checkpoints(const std::string& name, CheckpointWriting writing) {
  return {name, [writing](const auto& path) { write_checkpoints(path, writing); },
          [writing](const auto& path) { read_checkpoints(path, writing); }};
}

std::vector<Kind> kinds() {
  return {
      {"values.pt", [](const auto& path) { save(plain_values(), path); },
       [](const auto& path) { require(equal(load(path, {.verify = true}), plain_values()), "the file"); }},
      {"run.pt", write_run, read_run},
      {"epoch.pt", write_epoch, read_epoch},
      {"optimizers.pt", [](const auto& path) { save(optimizer_states(), path); },
       [](const auto& path) { require_optimizers(load(path).as_dict()); }},
      {"schedulers.pt", [](const auto& path) { save(scheduler_states(), path); },
       [](const auto& path) { require_schedulers(load(path).as_dict()); }},
      {"tensors.safetensors", write_safetensors, read_safetensors},
      checkpoints("checkpoints", CheckpointWriting::first_rank),
      checkpoints("checkpoints of every rank", CheckpointWriting::every_rank),
      {"distributed checkpoint", write_distributed, read_distributed},
      {"data set", write_folder, read_folder},
  };
}

void write(const fs::path& folder) {
  fs::create_directories(folder);
  for (const auto& kind : kinds()) kind.write(folder / kind.name);
}

// Returns whether there were files, and all were read.
bool read(const fs::path& folder) {
  int failed = 0;
  int found = 0;
  for (const auto& kind : kinds()) {
    if (!fs::exists(folder / kind.name)) {
      std::cout << kind.name << ": not written by that version\n";
      continue;
    }
    ++found;
    try {
      kind.read(folder / kind.name);
      std::cout << kind.name << ": read\n";
    } catch (const std::exception& error) {
      ++failed;
      std::cout << kind.name << ": " << error.what() << '\n';
    }
  }
  std::cout << found - failed << " of " << found << " kinds of files were read\n";
  return found > 0 && failed == 0;
}

int run(const std::string& what, const fs::path& folder) {
  if (what == "both") fs::remove_all(folder);
  if (what != "read") write(folder);
  return what == "write" || read(folder) ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::versions

int main(int count, char** words) {
  const std::string what = count == 3 ? words[1] : "";
  if (what != "write" && what != "read" && what != "both") {
    std::cerr << "usage: version_files write|read|both FOLDER\n";
    return 2;
  }
  try {
    return lockstep::versions::run(what, words[2]);
  } catch (const std::exception& error) {
    std::cerr << "version_files " << what << ": " << error.what() << '\n';
    return 1;
  }
}
