/* A ring of puts: rank r writes into a buffer of rank r + 1, then raises its signal.
   A credit of rank r + 1 says that the buffer is free.
   Property: every rank computes at step t with the K,V of owner(t), from the begin of the compute to its end, and ends.

   Mirrors tests/protocols/one_sided.hpp, start(), progress() and finish():
     |     give_credit(hop_, exchange.receive);  // finish() has ended the put out of this buffer
     |   void progress() override { begin_put(); }
     |     wait_for_credit();
     |     end_put();
     |     signal();
     |     wait_for_signal();
   and begin_put():
     |     check_mpi(MPI_Put_c(send.data(), std::ssize(send), MPI_BYTE, ring().next(), address, std::ssize(send),
   No transport of the library puts. NVSHMEM and CUDA IPC have the same credits and signals.

   Left out: K,V that stop early, and the numbers. Assumed: MPI_Win_flush returns when the data are in the memory of the
   other rank, and that rank sees them after it has read the signal.

   Mistakes: CREDIT 0, none; 1, when the compute has ended, though the own put out of that buffer may not have ended.
   NO_ORDER: the signal may arrive before the data. */
#include "topology.pml"
#ifndef CREDIT
#define CREDIT 2
#endif

typedef Buffers { byte holds[2] }
Buffers at[N];
byte arrived[N];       /* signals: parcels that have arrived at r */
byte credit[N];        /* puts into NEXT(r) that r may begin, in all so far */
bool putting[N];       /* the put of r is under way */
byte put_from[N];
byte ended;

inline begin_put() { atomic { put_from[r] = t % 2; putting[r] = true; begun = true } }

proctype Rank(byte r) {
  byte t = 0;
  bool begun = false;
  do
  :: true ->
#if CREDIT == 2
     if :: t < N - 1 -> credit[PREV(r)]++ :: else fi;   /* the other buffer is free */
#endif
     assert(at[r].holds[t % 2] == OWNER(r, t));         /* the compute begins */
     if
     :: t < N - 1 && credit[r] > t -> begin_put()       /* progress() */
     :: true
     fi;
     assert(at[r].holds[t % 2] == OWNER(r, t));         /* the compute ends */
     if :: t == N - 1 -> break :: else fi;
#if CREDIT == 1
     credit[PREV(r)]++;
#endif
     if :: begun :: else -> (credit[r] > t); begin_put() fi;
#ifdef NO_ORDER
     arrived[NEXT(r)]++;
     (!putting[r]);
#else
     (!putting[r]);
     arrived[NEXT(r)]++;
#endif
     (arrived[r] > t);
     begun = false;
     t++
  od;
  t = 0; ended++
}

/* The network, or a copy engine. */
proctype Put(byte r) {
  byte value;
  end: do
  :: putting[r] ->
     value = at[r].holds[put_from[r]];
     at[NEXT(r)].holds[1 - put_from[r]] = value;
     atomic { value = 0; putting[r] = false }
  od
}

init {
  byte i = 0;
  atomic {
    choose_hops();
    do
    :: i < N -> at[i].holds[0] = i; at[i].holds[1] = NONE;
#if CREDIT == 0
       credit[i] = N;
#elif CREDIT == 1
       credit[i] = 1;
#endif
       run Rank(i); run Put(i); i++
    :: else -> break
    od;
    i = 0
  }
  (ended == N)
}
