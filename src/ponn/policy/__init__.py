"""What a policy is and answers, with numpy alone; its file; batches of any size."""
