// SPDX-License-Identifier: BSD-3-Clause
// Mistakes with files and datasets.
#include <filesystem>
#include <fstream>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "multiprocess/mistakes.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using torch::nn::Linear;

struct Numbers {
  at::Tensor get_batch(const at::Tensor& indices) const { return indices.to(at::kFloat); }
  std::size_t size() const { return 8; }
};

const Mistake no_barrier("FileReadBeforeABarrier", {.on_rank1 = {"weights.pt", "No such file", "barrier()"}},
                         [] {
                           const auto context = init({.timeout = 20s});
                           const TempFolder folder;
                           if (context.rank() == 1) (void)load(folder / "weights.pt");
                         });

const Mistake to_gpu("MapLocationWithoutAGpu", {.on_all = {"map_location", "cuda:0", "at::kCPU"}}, [] {
  const auto context = init({.timeout = 20s});
  const TempFolder folder;
  save(Value(torch::ones({2})), folder / "weights.pt");
  (void)load(folder / "weights.pt", {.map_location = at::Device("cuda:0")});
});

const Mistake other_model("StateOfAnotherModel", {.on_all = {"weight", "[2, 2]", "[3, 2]"}}, [] {
  const auto context = init({.timeout = 20s});
  const auto state = state_dict(*Linear(2, 2));
  Linear net(2, 3);
  load_state_dict(net, state);
});

const Mistake no_checkpoint("FileIsNoCheckpoint", {.on_all = {"notes.txt"}}, [] {
  const auto context = init({.timeout = 20s});
  const TempFolder folder;
  std::ofstream(folder / "notes.txt") << "loss 0.1";
  (void)load(folder / "notes.txt");
});

const Mistake pinned("PinnedMemoryWithoutAnAccelerator", {.once = {"pin_memory"}, .ending = Ending::well},
                     [] {
                       const auto context = init({.timeout = 20s});
                       data::DataLoader loader(Numbers(), {.batch_size = 2, .pin_memory = true});
                       for (auto& batch : loader) (void)batch;
                     });

const Mistake no_batch("BatchSizeOfZero", {.on_all = {"batch_size", "0"}}, [] {
  const auto context = init({.timeout = 20s});
  (void)data::DataLoader(Numbers(), {.batch_size = 0});
});

const Mistake shuffle_twice("ShuffleBesideASampler", {.on_all = {"shuffle", "sampler"}}, [] {
  const auto context = init({.timeout = 20s});
  const auto sampler = std::make_shared<data::DistributedSampler>(8);
  (void)data::DataLoader(Numbers(), {.batch_size = 2, .shuffle = true, .sampler = sampler});
});

const Mistake no_images("FolderOfImagesIsMissing", {.on_all = {"/nowhere/train"}}, [] {
  const auto context = init({.timeout = 20s});
  (void)data::ImageFolder("/nowhere/train");
});

const Mistake no_digits("FilesOfADatasetAreMissing", {.on_all = {"/nowhere/digits", "download"}}, [] {
  const auto context = init({.timeout = 20s});
  (void)data::MNIST("/nowhere/digits");
});

const Mistake damaged_digits("FilesOfADatasetAreDamaged",
                             {.on_all = {"MNIST cannot be read (at files_mistakes_test.cpp:",
                                         "train-images-idx3-ubyte: ", "train-labels-idx1-ubyte: "}},
                             [] {
                               const auto context = init({.timeout = 20s});
                               const TempFolder folder;
                               std::ofstream(folder / "train-images-idx3-ubyte") << "no digits";
                               std::ofstream(folder / "train-labels-idx1-ubyte") << "no labels";
                               (void)data::MNIST(folder.path());
                             });

const Mistake no_number("TableWithAWord", {.on_all = {"table.csv: line 2, column 0", "is not a number"}}, [] {
  const auto context = init({.timeout = 20s});
  const TempFolder folder;
  std::ofstream(folder / "table.csv") << "height,class\ntall,1\n";
  (void)data::CsvDataset(folder / "table.csv");
});

const Mistake no_array("ArrayFileIsMissing", {.on_all = {"samples.npy"}}, [] {
  const auto context = init({.timeout = 20s});
  (void)data::NumpyDataset("/nowhere/samples.npy", "/nowhere/targets.npy");
});

const Mistake remote_shards("ShardsOfAnotherHost", {.on_all = {"http://", "local files"}}, [] {
  const auto context = init({.timeout = 20s});
  (void)data::WebDataset("http://data/train-{0..3}.tar");
});

const Mistake beyond_the_end("IndexBeyondTheDataset", {.on_all = {"index 8", "8 samples"}}, [] {
  const auto context = init({.timeout = 20s});
  const data::TensorDataset points(torch::ones({8, 1}), torch::ones({8}));
  (void)points.get_batch(torch::tensor({8}));
});

const Mistake damaged("DamagedPictureInALoader", {.on_all = {"cat.jpg"}}, [] {
  const auto context = init({.timeout = 20s});
  const TempFolder folder;
  std::filesystem::create_directory(folder / "cats");
  std::ofstream(folder / "cats/cat.jpg") << "no picture";
  data::DataLoader loader(data::ImageFolder(folder.path()), {.num_workers = 1, .distributed = false});
  for (auto& batch : loader) (void)batch;
});

const Mistake own_dataset("ErrorOfTheProgramsOwnDataset",
                          {.on_all = {"row 3 has no label"}, .place = Place::none}, [] {
                            struct Unlabelled : Numbers {
                              at::Tensor get_batch(const at::Tensor&) const {
                                throw DataError("row 3 has no label");
                              }
                            };
                            const auto context = init({.timeout = 20s});
                            data::DataLoader loader(Unlabelled{});
                            for (auto& batch : loader) (void)batch;
                          });

const Mistake in_a_used_folder("TrainerInAFolderOfAnotherRun", {.on_all = {"resume"}}, [] {
  const auto context = init({.timeout = 20s});
  const TempFolder folder;
  const auto path = context.group().broadcast_object(folder.path().string(), 0);
  for (int run = 0; run < 2; ++run) {
    Linear net(1, 1);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    DistributedDataParallel ddp(net);
    Trainer trainer(ddp, optimizer, {.epochs = 1, .checkpoints = path + "/runs"});
    std::vector batches{torch::ones({1, 1})};
    trainer.fit(batches, [&](auto& batch) { return ddp->forward(batch).sum(); });
  }
});

const Mistake wrong_share("SamplerOfARankThatIsNone", {.on_all = {"rank", "2", "num_replicas"}}, [] {
  const auto context = init({.timeout = 20s});
  (void)data::DistributedSampler(8, {.num_replicas = 2, .rank = 2});
});

const Mistake shared_wrong_share("SamplerOfMakeSharedOfARankThatIsNone",
                                 {.on_all = {"rank", "2", "num_replicas"}, .place = Place::none}, [] {
                                   const auto context = init({.timeout = 20s});
                                   using Options = data::DistributedSamplerOptions;
                                   (void)std::make_shared<data::DistributedSampler>(
                                       8, Options{.num_replicas = 2, .rank = 2});
                                 });

}  // namespace
}  // namespace lockstep::testing
