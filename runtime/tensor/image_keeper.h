// Where a runtime's image is kept, so that another may go on from it: the
// keeper is told of each change before what follows from it can happen. Bytes
// that may be reused, or be torn by a transfer, are none of the image's by
// then.
//
// Mover only; nothing blocks.
#pragma once

#include <cstdint>

#include "runtime/tensor/runtime_image.h"

namespace terrace {

class Tensor;

class ImageKeeper {
 public:
  virtual ~ImageKeeper() = default;

  // Its owner is told of it from here on.
  virtual void OnTensor(const Tensor& tensor) = 0;
  // It has other contents, or its copies are elsewhere. Of one that its owner
  // was not told of, or is no more: nothing.
  virtual void OnChanged(const Tensor& tensor) = 0;
  virtual void OnTensorEnd(TensorId id) = 0;

  virtual void OnQueue(const QueueImage& queue) = 0;
  virtual void OnQueueEnd(int64_t id) = 0;

  virtual void OnPin(const PinImage& pin) = 0;
  // What its end means has happened.
  virtual void OnPinEnd(uint64_t token) = 0;

  // Of the first memory, that range is lent, and has pages perhaps; or it is
  // not, and has pages.
  virtual void OnLent(const Extent& range) = 0;
  virtual void OnReturned(const Extent& range) = 0;
};

}  // namespace terrace
