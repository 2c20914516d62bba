// The keeper of a job's runtime: what it is told stands in the job's image from
// then on, whatever becomes of this process. Another process reads it there.
//
// The mover's.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "daemon/jobs/image/image_file.h"
#include "runtime/tensor/image_keeper.h"

namespace terrace {

// What an image has that another process wrote. DataLoss: it is none.
absl::StatusOr<RuntimeImage> ReadImage(const ImageFile& file);

class ImageWriter final : public ImageKeeper {
 public:
  // With what the file has already; it outlives the writer.
  explicit ImageWriter(ImageFile& file);

  void OnTensor(const Tensor& tensor) override;
  void OnChanged(const Tensor& tensor) override;
  void OnTensorEnd(TensorId id) override;
  void OnQueue(const QueueImage& queue) override;
  void OnQueueEnd(int64_t id) override;
  void OnPin(const PinImage& pin) override;
  void OnPinEnd(uint64_t token) override;
  void OnLent(const Extent& range) override;
  void OnReturned(const Extent& range) override;

  // What the image does not have goes: nobody has it.
  void KeepOnly(const RuntimeImage& image);

 private:
  // Of an entry's number.
  using Places = absl::flat_hash_map<uint64_t, uint32_t>;

  // kNoEntry: there is none left, and the image is of no use from here on.
  uint32_t Take();
  void Free(uint32_t index);
  void FreeName(uint32_t more);
  uint32_t PutName(absl::string_view rest);
  void End(Places& places, uint64_t key);

  ImageFile& file_;
  Places tensors_;  // by id
  Places pins_;     // by token
  Places queues_;   // by id
  Places lent_;     // by offset
  std::vector<uint32_t> free_;
};

}  // namespace terrace
