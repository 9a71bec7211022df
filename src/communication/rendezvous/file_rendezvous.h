// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <set>
#include <string>

#include "base/deadline.h"
#include "rendezvous/tcp.h"

namespace lockstep::rendezvous {

// How the ranks of "file:///path" find rank 0's store.
//
// Every rank writes <path>.rank<r> with a random ticket. When all exist, rank 0 writes <path>.run: its
// addresses and all tickets. A rank accepts a run file only if it contains its own ticket, so files of an
// earlier run are never used. Rank 0 removes files of earlier runs when it starts, and all files at the end;
// a rank whose file was removed writes it again. `path` itself is neither read nor written.
class FileRendezvous {
 public:
  FileRendezvous(std::string path, int rank, int world_size);
  ~FileRendezvous();
  FileRendezvous(const FileRendezvous&) = delete;
  FileRendezvous& operator=(const FileRendezvous&) = delete;

  // Rank 0: waits for the others and publishes its address.
  void publish(int port, const Deadline& deadline);
  // The other ranks: waits for that address. Both throw RendezvousError naming the missing ranks.
  Endpoint find(const Deadline& deadline);

 private:
  std::string rank_path(int rank) const;
  std::string run_path() const;
  void remove_leftovers() const;
  void write_ticket() const;
  // Whether all ranks have a file.
  bool all_there();
  [[noreturn]] void give_up(const Deadline& deadline) const;
  // The server, if rank 0 has written a run file with this rank's ticket.
  std::optional<Endpoint> server_of_this_run() const;

  std::string path_;
  int rank_;
  int world_size_;
  std::string ticket_;
  std::set<int> never_seen_;  // have had no file so far; a rank that gives up removes its file
};

}  // namespace lockstep::rendezvous
