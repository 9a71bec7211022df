// SPDX-License-Identifier: BSD-3-Clause

// Note [Save protocol]
//
//     rank 0                                   rank 1
//     begin_save   make the folder, lock it (shared), draw a token ------> token
//     plan         describe the entries <--- gathered ---> describe   all make the same plan
//     sizes        place pieces in files <------------ sizes of its pieces
//     write        __0_<token>.distcp                       __1_<token>.distcp   named when complete
//     all written  <------------------------------------ (a collective call, or rank 0 polls the folder)
//     commit       .metadata replaces the old one; then remove files that no metadata names
//
// - The metadata makes the checkpoint. A rename replaces it, so a reader finds the old checkpoint or the new
//   one. Until commit() the files of the old one stay as they are.
// - The names of data files contain the token, so two saves never write the same file, and the late writer of
//   a failed save cannot damage another one.
// - A killed save leaves data files that no metadata names. A later commit() removes them, unless a save in
//   progress may have written them: it tries to take the folder's lock alone, which tells on a file system of
//   one host. Elsewhere it leaves files that are younger than a day.
// - A rank that cannot write leaves "<file>.failed", so that rank 0 need not wait until a timeout. An
//   asynchronous save makes no collective call after the sizes, because training uses the group meanwhile.
#include "checkpoint/distributed_save.h"

#include <fstream>
#include <iterator>
#include <span>
#include <system_error>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/strides.h>

#include <lockstep/checkpoint/distributed_checkpoint.h>

#include "base/atomic_file.h"
#include "base/rank_progress.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "checkpoint/write_metadata.h"
#include "comm/call_site.h"
#include "serialize/torch_format.h"

namespace lockstep::distributed_checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr const char* kGivenUp = ".failed";

// A compact CPU copy of the elements. A contiguous tensor may have any stride for a dimension of size 1,
// which would change the number of bytes that saved_size() computes.
at::Tensor compact(const at::Tensor& tensor) {
  const auto whole = tensor.cpu().resolve_conj().resolve_neg().contiguous();
  const bool own = whole.storage().nbytes() == whole.nbytes();
  const auto data = own ? whole : whole.clone(at::MemoryFormat::Contiguous);
  return data.as_strided(data.sizes(), c10::contiguous_strides(data.sizes()), 0);
}

std::uint64_t saved_size(const at::Tensor& tensor) {
  // Has the size of the tensor, but is never touched.
  return serialize::zip_size(serialize::pickle_value(at::empty(tensor.sizes(), tensor.scalar_type())));
}

std::string text_of(const fs::path& metadata) {
  std::ifstream stream(metadata, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Files of a save in progress have names that no metadata contain yet.
bool can_be_in_progress(const fs::path& file, const std::optional<checkpointing::FolderUse>& sole_use) {
  return !(sole_use && sole_use->is_of_one_host()) && !checkpointing::is_a_day_old(file);
}

}  // namespace

DistributedSave::DistributedSave(const Dict& contents, const checkpointing::Group& group, SaveTicket ticket,
                                 checkpointing::TensorCopies* copies)
    : use_(std::move(ticket.use)) {
  const auto& token = ticket.token;
  std::vector<Leaf> leaves;
  std::string own;
  checkpointing::on_every(group, [&] {
    leaves = flatten(contents);
    own = describe(leaves, !group || group->size() == 1);
  });
  auto plan = plan_save(checkpointing::gather_texts(group, own));
  const auto rank = checkpointing::rank_of(group);
  checkpointing::on_every(group, [&] { take_items(plan, leaves, rank, copies); });
  if (!items_.empty()) file_ = data_file(rank, token);
  List sizes;
  for (const auto& item : items_) sizes.items.emplace_back(item.size);
  const auto all = checkpointing::gather_texts(group, save_bytes(Value(std::move(sizes))));
  if (rank != 0) return;
  place_all(std::move(plan), all, token);
  metadata_.structure = structure_of(contents);
}

void DistributedSave::take_items(const SavePlan& plan, const std::vector<Leaf>& leaves, std::size_t rank,
                                 checkpointing::TensorCopies* copies) {
  std::map<std::string, const Value*> values;
  for (const auto& leaf : leaves) values.emplace(name_of(leaf.path), leaf.value);
  for (const auto& [entry, piece, writer] : plan.assignments) {
    if (writer != rank) continue;
    const auto& [name, described] = plan.entries[entry];
    const auto data = data_of(described, piece, *values.at(name));
    Item item;
    if (const auto* tensor = data.get_if<at::Tensor>()) {
      item.tensor = copies != nullptr ? copies->take(items_.size(), *tensor) : *tensor;
      item.size = saved_size(*tensor);
    } else {
      item.bytes = save_bytes(data);
      item.size = item.bytes.size();
    }
    items_.push_back(std::move(item));
  }
  if (copies != nullptr) copies->keep(items_.size());
}

// Each rank writes its pieces consecutively.
void DistributedSave::place_all(SavePlan plan, const std::vector<std::string>& sizes_of_ranks,
                                const std::string& token) {
  std::vector<Value> sizes;
  for (const auto& one : sizes_of_ranks) sizes.push_back(load_bytes(one));
  std::vector<std::uint64_t> ends(sizes.size(), 0);
  std::vector<std::size_t> placed(sizes.size(), 0);
  for (const auto& [entry, piece, rank] : plan.assignments) {
    const auto length = static_cast<std::uint64_t>(sizes[rank].as_items()[placed[rank]++].as_int());
    auto& found = plan.entries[entry].second;
    auto& place = found.is_tensor ? found.pieces[piece].place : found.place;
    place = Place{.file = data_file(rank, token), .offset = ends[rank], .length = length};
    ends[rank] += length;
  }
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (ends[rank] > 0) files_.emplace(data_file(rank, token), ends[rank]);
  }
  metadata_.entries = std::move(plan.entries);
}

void DistributedSave::write(const fs::path& folder, bool sync) const {
  const ErrorFile about(folder);
  if (file_.empty()) return;
  const auto file = folder / file_;
  serialize::replace_file(file, sync, [&](AtomicFile& target) {
    const auto sink = [&](std::span<const std::byte> bytes) { target.write(bytes); };
    for (const auto& item : items_) {
      const auto before = target.size();
      if (item.tensor.defined()) {
        serialize::write_zip(serialize::pickle_value(compact(item.tensor)), sink);
      } else {
        sink(std::as_bytes(std::span(item.bytes)));
      }
      if (target.size() - before != item.size)
        throw_error<CheckpointError>("{}: a tensor changed its shape while it was saved", file.string());
    }
  });
}

void DistributedSave::give_up(const fs::path& folder) const {
  const std::ofstream mark(folder / (file_ + kGivenUp));
}

void DistributedSave::forget_failure(const fs::path& folder) const {
  std::error_code code;
  if (!file_.empty()) fs::remove(folder / (file_ + kGivenUp), code);
}

bool DistributedSave::is_complete(const fs::path& folder) const {
  std::error_code code;
  for (const auto& [file, size] : files_) {
    if (fs::file_size(folder / file, code) == size && !code) continue;
    if (!fs::exists(folder / (file + kGivenUp), code)) return false;
    throw_error<CheckpointError>("{}: its rank could not write it", (folder / file).string());
  }
  return true;
}

void DistributedSave::commit(const fs::path& folder, bool sync) {
  const ErrorFile about(folder);
  const auto replaced = text_of(folder / kMetadataName);
  write_metadata_file(metadata_, folder, sync);
  auto use = std::exchange(use_, std::nullopt);
  if (use && use->be_the_last() != checkpointing::Others::none) use.reset();
  // Another save may have replaced the metadata meanwhile.
  const auto present = text_of(folder / kMetadataName);
  if (present.empty()) return;
  std::error_code code;
  for (const auto& name : data_files(folder)) {
    const bool is_named = files_.contains(name) || present.find(name) != std::string::npos;
    const bool was_named = replaced.find(name) != std::string::npos;
    if (is_named || (!was_named && can_be_in_progress(folder / name, use))) continue;
    fs::remove(folder / name, code);
  }
}

SaveTicket begin_save(const fs::path& folder, const checkpointing::Group& group, bool sync) {
  const ErrorFile about(folder);
  SaveTicket ticket;
  checkpointing::on_first(group, [&] {
    try {
      // Another save may remove or replace the folder before it is in use.
      for (int tries = 0; tries < 10 && !(ticket.use && ticket.use->is_at(folder)); ++tries) {
        make_folders(folder, sync);
        ticket.use.emplace(folder);
      }
    } catch (const std::system_error& error) {
      throw_error<CheckpointError>("{}: the folder cannot be made: {}", folder.string(),
                                   errno_text(error.code().value()));
    }
    ticket.token = random_hex(2);
  });
  ticket.token = checkpointing::share_text(group, ticket.token);
  return ticket;
}

void save(const Dict& contents, const fs::path& folder, const SaveOptions& options,
          std::source_location where) {
  const comm::CallSite site(where, "checkpoint");
  const PhaseScope phase(Phase::checkpoint);
  checkpointing::check_folder(folder, options.checkpoint_id, "distributed_checkpoint::save");
  const auto group = checkpointing::group_of(options, "distributed_checkpoint::save");
  DistributedSave saving(contents, group, begin_save(folder, group, options.sync));
  checkpointing::on_every(group, [&] { saving.write(folder, options.sync); });
  checkpointing::on_first(group, [&] { saving.commit(folder, options.sync); });
}

}  // namespace lockstep::distributed_checkpoint
