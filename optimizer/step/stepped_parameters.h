// Which parameters a step has updated: those of which every chunk has been. Of
// a step that tells of them while it goes on; of others nothing is kept.
//
// Several attempts at a step count together. One thread at a time. The table
// must outlive it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "optimizer/chunks/chunk_table.h"
#include "optimizer/step/chunk_update.h"

namespace terrace {

class SteppedParameters {
 public:
  explicit SteppedParameters(const ChunkTable& chunks) : chunks_(chunks) {}
  SteppedParameters(const SteppedParameters&) = delete;
  SteppedParameters& operator=(const SteppedParameters&) = delete;

  // Of a new step that tells of some of its `parameters`; of none so far.
  void Begin(size_t parameters);
  // Of one that does not tell.
  void Clear();

  bool tells() const { return tells_; }

  // The parameter is to be stepped: in how many chunks it is.
  int Expect(int parameter);

  // An update begins here and ends on the executor.
  void OnUpdate(int chunk, std::shared_ptr<ChunkUpdate> update);
  // It did not take place.
  void OnLost(int chunk);
  // Appends those that were stepped since the last call.
  void Take(std::vector<int>* parameters);

 private:
  struct RunningUpdate {
    int chunk;
    std::shared_ptr<ChunkUpdate> update;
  };

  void Count(int chunk, std::vector<int>* parameters);

  const ChunkTable& chunks_;
  bool tells_ = false;
  std::vector<int> chunks_left_;  // by parameter; -1: it is not expected
  std::vector<int> chunks_of_;    // by parameter
  std::vector<int> stepped_;      // without a chunk
  std::vector<RunningUpdate> updates_;
};

}  // namespace terrace
