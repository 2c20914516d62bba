// Operators over lists of tensors are called part by part where these do not
// fit a window together (operation/list_operators.h): a kernel of ours, which
// stands before each of these operators for as long as the process lives, calls
// the operator for some elements of its lists at a time. Values are those of
// one call, as such an operator does the same to each element. A call that
// fails in the middle has done its first elements, as a loop over tensors has.
#pragma once

namespace terrace {

// Calls that begin after the first call of this function are seen; later calls
// do nothing. The function is thread-safe.
void ListenToListCalls();

}  // namespace terrace
